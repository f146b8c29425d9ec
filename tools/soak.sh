#!/usr/bin/env bash
# Runs the seeded crash, freeze and order suites again and again with new seeds, on every flavour and broker that is
# unpacked in .cache, and appends one line per round to docs/soak.tsv: commit it. A failed round is recorded too, and ends
# the soak with 1.
#
#	tools/soak.sh [MINUTES]      default 30; a round that has begun is finished
#
# SOAK_RUN='^TestCrashesOfEveryPart$' runs those tests alone (in tests/tail: CELLOG_TEST_CRASHES=100 crashes each).
# SOAK_BROKER=kafka takes Apache Kafka alone, with both flavours; SOAK_BROKER=embedded the embedded broker alone.
set -euo pipefail
cd "$(dirname "$0")/.."
end=$((SECONDS + 60 * ${1:-30}))
ledger=docs/soak.tsv
[ -s "$ledger" ] || printf 'utc\tcommit\tflavour\tbroker\tpassed\tfailed\tkills\tcells\tseconds\tresult\tseeds\n' >"$ledger"
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD -- . ":!$ledger" || commit+=-dirty
log=$(mktemp)
trap 'rm -f "$log"' EXIT
suites=${SOAK_RUN:-'Kill|FinishesMoves|MoveAndPromotions|TwoMovers|Frozen|Thaw|Random|Crash|Order|Shared|FunctionOfTheCells|ArriveOnce'}
packages='./cdc ./internal/app ./internal/devbroker ./indexer/table ./triggers ./storage/mysql ./tests/...'

round() { # flavour broker
  local began=$SECONDS rc=0
  go test -count=1 -timeout 60m -v -run "$suites" $packages >"$log" 2>&1 || rc=$?
  local count='function sum(s,  n,f,i){n=split(s,f,/[^0-9]+/); t=0; for(i=1;i<=n;i++) t+=f[i]; return t}'
  local kills cells seeds passed failed result=ok
  kills=$(awk "$count"' /killed map\[/{sub(/.*killed map/,""); gsub(/[a-z\/ -]+:/," "); k+=sum($0)} END{print k+0}' "$log")
  cells=$(awk '{for(i=2;i<=NF;i++) if($i ~ /^(cells|rows)[,.]?$/ && $(i-1) ~ /^[0-9]+$/){c+=$(i-1); break}} END{print c+0}' "$log")
  seeds=$(grep -oiE 'seed[ =:]+[0-9]+' "$log" | grep -oE '[0-9]+' | sort -u | paste -sd, || true)
  passed=$(grep -c '^--- PASS' "$log" || true)
  failed=$(grep -c '^--- FAIL' "$log" || true)
  [ "$rc" = 0 ] || result=FAIL
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%FT%TZ)" "$commit" "$1" "$2" "$passed" "$failed" "$kills" "$cells" \
    $((SECONDS - began)) "$result" "$seeds" | tee -a "$ledger"
  if [ "$rc" != 0 ]; then
    cp "$log" soak-failed.log
    echo "soak: this round failed; its output is in soak-failed.log, replay with CELLOG_TEST_SEED" >&2
    exit 1
  fi
}

mysql=.cache/mysql/mysqld kafka=.cache/kafka/broker
case ${SOAK_BROKER:-all} in all | embedded | kafka) ;; *)
  echo "soak: SOAK_BROKER=$SOAK_BROKER: want kafka or embedded" >&2
  exit 2
  ;;
esac
if [ "${SOAK_BROKER:-}" = kafka ] && ! { [ -x $mysql ] && [ -x $kafka ]; }; then
  echo "soak: $mysql or $kafka is missing: run make mysql kafka" >&2
  exit 2
fi
on() { [ $SECONDS -lt $end ] && "$@"; }
with_mysql() { CELLOG_TEST_FLAVOUR=mysql CELLOG_MYSQLD=$PWD/$mysql "$@"; }
with_kafka() { CELLOG_TEST_KAFKA=real CELLOG_KAFKA_DIR=$PWD/.cache/kafka "$@"; }
while [ $SECONDS -lt $end ]; do
  if [ "${SOAK_BROKER:-}" != kafka ]; then
    round mariadb embedded
    if [ -x $mysql ]; then on with_mysql round mysql embedded || true; fi
  fi
  if [ "${SOAK_BROKER:-}" != embedded ] && [ -x $kafka ]; then
    on with_kafka round mariadb kafka || true
  fi
  if [ "${SOAK_BROKER:-}" = kafka ]; then
    on with_kafka with_mysql round mysql kafka || true
  fi
done
