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
[ -s "$CELLOG_CHAOS_LEDGER" ] || printf 'utc\tcommit\tflavour\tbroker\tseed\tseconds\tfaults\tacknowledged\taccepted\trejected\tlost\tdoubled\treordered\tresult\tfaults by kind (longest time without a success; since tests/chaos: of any cluster, without 201 / without 2xx, how many puts failed, and from a promotion to its first event)\n' >"$CELLOG_CHAOS_LEDGER"
# faults FLAVOUR: how many the ledger has.
faults() { awk -F'\t' -v f="$1" '$3 == f { n += $7 } END { print n + 0 }' "$CELLOG_CHAOS_LEDGER"; }
# sum prints the totals, and for each kind of fault the median and the longest of the runs' longest times without a 201,
# without any 2xx, and from a promotion to its first event in Kafka, and how many puts failed: were answered 429 or 5xx,
# or by nobody. "nothing" is the control, and not a fault.
sum() {
  awk -F'\t' '
    function seconds(of,    x) { x = of; return sub(/ms$/, "", x) ? x / 1000 : x + 0 }
    function add(what, kind, of) { v[what, kind, ++count[what, kind]] = seconds(of) }
    function spread(what, kind,    i, j, x, c) {
      if (!(c = count[what, kind])) return "-"
      for (i = 2; i <= c; i++) { x = v[what, kind, i]; for (j = i - 1; j && v[what, kind, j] > x; j--) v[what, kind, j + 1] = v[what, kind, j]; v[what, kind, j + 1] = x }
      return sprintf("%.2f / %.2f", v[what, kind, int((c + 1) / 2)], v[what, kind, c])
    }
    NR > 1 { runs[$3]++; n[$3] += $7; a[$3] += $8; acc[$3] += $9; lost[$3] += $11; dbl[$3] += $12; re[$3] += $13; bad[$3] += $14 != "ok"
      m = split($15, k, /\), /)
      for (i = 1; i <= m; i++) {
        open = index(k[i], " ("); name = substr(k[i], 1, open - 1); times = substr(k[i], open + 2); sub(/\)$/, "", times)
        c = name; sub(/.* /, "", c); sub(/ [0-9]+$/, "", name); kind[name] += c
        if (split(times, t, /( \/ |, )/) < 2) continue # before tests/chaos took the times of each cluster
        add("created", name, t[1]); add("any", name, t[2])
        for (j = 3; j in t; j++) if (t[j] !~ / failed$/) add("event", name, t[j]); else { failed[name] += t[j]; counted[name] += c }
      } }
    END { printf "%-8s %5s %6s %6s %12s %8s %5s %7s %9s\n", "flavour", "runs", "failed", "faults", "acknowledged", "accepted", "lost", "doubled", "reordered"
      for (f in runs) printf "%-8s %5d %6d %6d %12d %8d %5d %7d %9d\n", f, runs[f], bad[f], n[f], a[f], acc[f], lost[f], dbl[f], re[f]
      printf "\n%-28s %6s %15s %15s %15s %18s\n", "median / longest, in s", "faults", "no 201", "no 2xx", "to first event", "failed puts a fault"; fflush()
      for (x in kind) printf "%-28s %6d %15s %15s %15s %18s\n", x, kind[x], spread("created", x), spread("any", x), spread("event", x), counted[x] ? sprintf("%.1f", failed[x] / counted[x]) : "-" | "sort" }' "$CELLOG_CHAOS_LEDGER"
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
