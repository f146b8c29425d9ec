package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
)

var errEnough = errors.New("as many records as were asked for")

func newConsume() *cobra.Command {
	var t target
	var format, from string
	var count int
	var untilEnd bool
	cmd := &cobra.Command{
		Use:   "consume DATASTORE.COLUMN",
		Short: "Print a column's records from Kafka, committed ones only",
		Long: `Print the records of a column's topic as they are in Kafka, values as JSON whatever their form, in offset order per partition, committed ones only
(other clients must set isolation.level=read_committed). DATASTORE._all is the merged topic, where there is one.
It follows the topic until it is interrupted, unless --until-end or --count is given. A topic that is not there yet
is waited for. With --from TIME no record of an earlier time is printed.`,
		Example: `  cellog consume trips.BASE --from zero --until-end --format json
  cellog consume trips.STATUS --from latest
  cellog consume trips.BASE --from 2026-03-01T00:00:00Z --count 10`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			datastore, column, ok := strings.Cut(args[0], ".")
			if !ok {
				return usageError("%q: want DATASTORE.COLUMN, such as trips.BASE", args[0])
			}
			if err := checkLimit("count", count); err != nil {
				return err
			}
			if err := cellog.CheckDatastore(datastore); err != nil {
				return exitError{exitUsage, err}
			}
			if column != "_all" {
				if err := cellog.CheckColumn(column); err != nil {
					return exitError{exitUsage, err}
				}
			}
			start, err := kafka.ParseFrom(from)
			if err != nil {
				return usageError("--%w", err)
			}
			brokers, prefix, err := t.brokers()
			if err != nil {
				return err
			}
			return consume(cmd.Context(), brokers, cellog.TopicName(prefix, datastore, column), start, untilEnd, count, recordPrinter(cmd.OutOrStdout(), format), cmd.ErrOrStderr())
		},
	}
	t.kafkaFlags(cmd)
	formatFlag(cmd, &format)
	f := cmd.Flags()
	f.StringVar(&from, "from", "latest", "where to start: zero, latest, or a time such as 2026-03-01T12:00:00Z")
	f.IntVar(&count, "count", 0, "stop after so many records (default: never)")
	f.BoolVar(&untilEnd, "until-end", false, "stop at what was the end when the command started")
	return cmd
}

func consume(ctx context.Context, brokers []string, topic string, from kafka.From, untilEnd bool, count int, show func(kafka.Delivery) error, stderr io.Writer) error {
	c, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: kafka.Config{Addrs: brokers, ClientID: "cellog-consume"}})
	if err != nil {
		return err
	}
	defer c.Close()
	n := 0
	each := func(d kafka.Delivery) error {
		if from.Before(d.Time) {
			return nil
		}
		if err := show(d); err != nil {
			return err
		}
		if n++; count > 0 && n >= count {
			return errEnough
		}
		return nil
	}
	if untilEnd {
		spans, err := c.Spans(ctx, from, topic)
		if err != nil {
			return err
		}
		if len(spans) == 0 {
			return fmt.Errorf("there is no topic %s: topics are made when a column gets its first cell", topic)
		}
		err = c.Read(ctx, spans, each)
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	}
	spans, err := c.Spans(ctx, from, topic)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if len(spans) == 0 {
		// A typo would otherwise wait for ever without a word.
		fmt.Fprintf(stderr, "there is no topic %s yet; waiting for the column's first cell\n", topic)
	}
	err = c.Follow(ctx, from, []string{topic}, each)
	if errors.Is(err, errEnough) || ctx.Err() != nil {
		return nil
	}
	return err
}

// recordLine is a record as --format json prints it, one a line.
type recordLine struct {
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Time      time.Time         `json:"time"`
	Key       string            `json:"key"`
	Headers   map[string]string `json:"headers"`
	Value     json.RawMessage   `json:"value"`
	// Raw is in place of a value that is no body, so no cell's.
	Raw []byte `json:"value_base64,omitempty"`
}

func recordPrinter(w io.Writer, format string) func(kafka.Delivery) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return func(d kafka.Delivery) error {
		value := d.Value
		for _, h := range d.Headers {
			if h.Key != record.HeaderContentType {
				continue
			}
			if text, err := record.ValueJSON(string(h.Value), d.Value); err == nil {
				value = text
			}
		}
		if format == "text" {
			_, err := fmt.Fprintf(w, "%d/%d\t%s\t%s\t%s\n", d.Partition.Partition, d.Offset, d.Time.UTC().Format(time.RFC3339Nano), d.Key, value)
			return err
		}
		l := recordLine{Topic: d.Partition.Topic, Partition: d.Partition.Partition, Offset: d.Offset, Time: d.Time.UTC(),
			Key: string(d.Key), Headers: map[string]string{}, Value: value}
		if !json.Valid(value) {
			l.Value, l.Raw = nil, value
		}
		for _, h := range d.Headers {
			l.Headers[h.Key] = string(h.Value)
		}
		return e.Encode(l)
	}
}
