import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consume BROKERS TOPIC ISOLATION: prints every record of a topic as a line of JSON. */
public class Consume {
  public static void main(String[] args) {
    Properties props = new Properties();
    props.put("bootstrap.servers", args[0]);
    props.put("isolation.level", args[2]);
    props.put("enable.auto.commit", "false");
    props.put("key.deserializer", ByteArrayDeserializer.class.getName());
    props.put("value.deserializer", ByteArrayDeserializer.class.getName());
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(props)) {
      List<TopicPartition> partitions = consumer.partitionsFor(args[1]).stream()
          .map(p -> new TopicPartition(args[1], p.partition())).toList();
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
      StringBuilder out = new StringBuilder();
      while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
          out.append("{\"partition\":").append(r.partition()).append(",\"offset\":").append(r.offset())
              .append(",\"time\":").append(r.timestamp())
              .append(",\"key\":").append(quote(r.key())).append(",\"value\":").append(quote(r.value()))
              .append(",\"headers\":[");
          String comma = "";
          for (Header h : r.headers()) {
            out.append(comma).append("[").append(quote(h.key().getBytes(StandardCharsets.UTF_8)))
                .append(",").append(quote(h.value())).append("]");
            comma = ",";
          }
          out.append("]}\n");
        }
      }
      System.out.write(out.toString().getBytes(StandardCharsets.UTF_8), 0, out.toString().getBytes(StandardCharsets.UTF_8).length);
      System.out.flush();
    }
  }

  static String quote(byte[] bytes) {
    if (bytes == null) return "null";
    StringBuilder b = new StringBuilder("\"");
    for (char c : new String(bytes, StandardCharsets.UTF_8).toCharArray()) {
      if (c < 0x20 || c == '"' || c == '\\') b.append(String.format("\\u%04x", (int) c));
      else b.append(c);
    }
    return b.append('"').toString();
  }
}
