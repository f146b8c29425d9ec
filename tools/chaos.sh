#!/usr/bin/env bash
# Injects seeded faults into a running cellog and checks every answer that its clients got (tests/chaos), again and
# again with new seeds, on every flavour and broker that is unpacked in .cache. Each run appends a line to docs/chaos.tsv:
# commit it. The first run that fails ends it with 1; its own line in the output says how to replay it.
#
#	tools/chaos.sh [MINUTES [SECONDS]]      default 60 minutes of runs of 120 s each
set -euo pipefail
cd "$(dirname "$0")/.."
end=$((SECONDS + 60 * ${1:-60}))
export CELLOG_CHAOS_SECONDS=${2:-120} CELLOG_CHAOS_LEDGER=$PWD/docs/chaos.tsv
[ -s "$CELLOG_CHAOS_LEDGER" ] || printf 'utc\tcommit\tflavour\tbroker\tseed\tseconds\tfaults\tacknowledged\taccepted\trejected\tlost\tdoubled\treordered\tresult\tfaults by kind (longest time without a success; since tests/chaos: of any cluster, without 201 / without 2xx, and from a promotion to its first event)\n' >"$CELLOG_CHAOS_LEDGER"
CELLOG_CHAOS_COMMIT=$(git rev-parse --short HEAD)
git diff --quiet HEAD -- . ':!docs/chaos.tsv' || CELLOG_CHAOS_COMMIT+=-dirty
export CELLOG_CHAOS_COMMIT
round() { go test -count=1 -timeout 30m -run TestChaos -v ./tests/chaos | grep -E 'replay|left out|times; at most|lost|faults;|FAIL|^ok' || { echo "chaos: this run failed" >&2; exit 1; }; }
while [ $SECONDS -lt $end ]; do
  round
  if [ -x .cache/mysql/mysqld ] && [ $SECONDS -lt $end ]; then
    CELLOG_TEST_FLAVOUR=mysql CELLOG_MYSQLD=$PWD/.cache/mysql/mysqld round
  fi
  if [ -x .cache/kafka/broker ] && [ $SECONDS -lt $end ]; then
    [ ! -x .cache/mysql/mysqld ] || export CELLOG_MYSQLD=$PWD/.cache/mysql/mysqld
    CELLOG_TEST_FLAVOUR=$([ -x .cache/mysql/mysqld ] && echo mysql || echo mariadb) CELLOG_TEST_KAFKA=real CELLOG_KAFKA_DIR=$PWD/.cache/kafka round
  fi
done
