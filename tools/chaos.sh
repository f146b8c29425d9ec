#!/usr/bin/env bash
# Injects seeded faults into a running cellog and checks every answer that its clients got (tests/chaos), again and
# again with new seeds. Each run appends a line to docs/chaos.tsv: commit it. The flavour with fewer faults so far is
# next, on the embedded broker and on Apache Kafka in turn, so far as .cache has them. The first run that fails ends it
# with 1; its own line in the output says how to replay it. Data lies in memory where there is room: what is killed is
# processes, not machines. At its end, and with `sum` alone, it prints what the whole ledger adds up to.
#
#	tools/chaos.sh [MINUTES [SECONDS]]      default 60 minutes of runs of 120 s each
#	tools/chaos.sh sum
set -euo pipefail
cd "$(dirname "$0")/.."
export CELLOG_CHAOS_LEDGER=$PWD/docs/chaos.tsv
[ -s "$CELLOG_CHAOS_LEDGER" ] || printf 'utc\tcommit\tflavour\tbroker\tseed\tseconds\tfaults\tacknowledged\taccepted\trejected\tlost\tdoubled\treordered\tresult\tfaults by kind (longest time without a success; since tests/chaos: of any cluster, without 201 / without 2xx, and from a promotion to its first event)\n' >"$CELLOG_CHAOS_LEDGER"
# faults FLAVOUR: how many the ledger has.
faults() { awk -F'\t' -v f="$1" '$3 == f { n += $7 } END { print n + 0 }' "$CELLOG_CHAOS_LEDGER"; }
sum() {
  awk -F'\t' '
    NR > 1 { runs[$3]++; n[$3] += $7; a[$3] += $8; acc[$3] += $9; lost[$3] += $11; dbl[$3] += $12; re[$3] += $13; bad[$3] += $14 != "ok"
      gsub(/ \([^)]*\)/, "", $15); m = split($15, k, ", "); for (i = 1; i <= m; i++) { c = k[i]; sub(/.* /, "", c); sub(/ [0-9]+$/, "", k[i]); kind[k[i]] += c } }
    END { printf "%-8s %5s %6s %6s %12s %8s %5s %7s %9s\n", "flavour", "runs", "failed", "faults", "acknowledged", "accepted", "lost", "doubled", "reordered"
      for (f in runs) printf "%-8s %5d %6d %6d %12d %8d %5d %7d %9d\n", f, runs[f], bad[f], n[f], a[f], acc[f], lost[f], dbl[f], re[f]
      for (x in kind) printf "%6d %s\n", kind[x], x | "sort -k1,1nr" }' "$CELLOG_CHAOS_LEDGER"
}
if [ "${1:-}" = sum ]; then
  sum
  exit
fi
end=$((SECONDS + 60 * ${1:-60}))
export CELLOG_CHAOS_SECONDS=${2:-120}
CELLOG_CHAOS_COMMIT=$(git rev-parse --short HEAD)
git diff --quiet HEAD -- . ':!docs/chaos.tsv' || CELLOG_CHAOS_COMMIT+=-dirty
export CELLOG_CHAOS_COMMIT
free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }') || true
if [ -z "${TMPDIR:-}" ] && [ "${free:-0}" -gt $((8 << 20)) ] && ! findmnt -no OPTIONS /dev/shm 2>/dev/null | grep -qw noexec; then
  export TMPDIR=/dev/shm
fi
[ ! -x .cache/mysql/mysqld ] || export CELLOG_MYSQLD=$PWD/.cache/mysql/mysqld
[ ! -x .cache/kafka/broker ] || export CELLOG_KAFKA_DIR=$PWD/.cache/kafka
round=0
while [ $SECONDS -lt $end ]; do
  export CELLOG_TEST_FLAVOUR=mariadb CELLOG_TEST_KAFKA=
  [ -z "${CELLOG_MYSQLD:-}" ] || [ "$(faults mysql)" -ge "$(faults mariadb)" ] || CELLOG_TEST_FLAVOUR=mysql
  [ -z "${CELLOG_KAFKA_DIR:-}" ] || [ $((round++ % 2)) = 0 ] || CELLOG_TEST_KAFKA=real
  echo "== $CELLOG_TEST_FLAVOUR, $([ -n "$CELLOG_TEST_KAFKA" ] && echo Apache Kafka || echo embedded broker)"
  go test -count=1 -timeout 30m -run TestChaos -v ./tests/chaos | tee "${CELLOG_CHAOS_LOG:-/dev/null}" |
    grep -E 'replay|left out|times; at most|lost|faults;|FAIL|^ok' || { echo "chaos: this run failed" >&2; exit 1; }
done
sum
