#!/usr/bin/env bash
# get-kafka.sh [DIR]: fetch a real Apache Kafka broker (4.4, with its command-line tools) as jars with Maven into DIR/jars
# (DIR's default: .cache/kafka beside this folder), and write two wrappers:
#   DIR/broker DATA_DIR PORT [key=value ...]  one KRaft node (broker and controller, PORT and PORT+1) on 127.0.0.1, in
#                                             the foreground; formats DATA_DIR the first time; SIGTERM stops it
#   DIR/tool CLASS ARGS...                    e.g. DIR/tool org.apache.kafka.tools.TopicCommand --bootstrap-server ...
# Needs Java 17 or newer and Maven (tools/install-deps.sh kafka). Repeatable: it does nothing where the jars are
# complete; parallel runs wait for each other. KAFKA_HEAP (default 512m) sets the broker's heap.
set -euo pipefail
version=4.4.0
dir=${1:-$(cd "$(dirname "$0")/.." && pwd)/.cache/kafka}
dir=$(mkdir -p "$dir" && cd "$dir" && pwd)
exec 9>"$dir/.lock"
flock 9
if [ ! -e "$dir/jars/.complete-$version" ]; then
  for need in java mvn; do
    command -v "$need" >/dev/null || { echo "get-kafka.sh: needs $need (Java 17+, Maven): run tools/install-deps.sh kafka" >&2; exit 1; }
  done
  work=$dir/.work
  rm -rf "$work" "$dir/jars"
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/jars"
  dep() { echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version></dependency>"; }
  { echo '<project><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>local</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
    dep org.apache.kafka kafka_2.13 "$version"; dep org.apache.kafka kafka-tools "$version"
    dep org.apache.logging.log4j log4j-slf4j-impl 2.25.5
    echo '</dependencies></project>'; } >"$work/pom.xml"
  mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars" >&2 9>&-
  touch "$work/jars/.complete-$version"
  mv "$work/jars" "$dir/jars"
fi

write() { cat >"$dir/.$1.new" && chmod "$2" "$dir/.$1.new" && mv "$dir/.$1.new" "$dir/$1"; }
write log4j2.properties 644 <<'L'
rootLogger.level=WARN
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
L
write tool 755 <<'T'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
exec java -Xmx256m -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$here/jars/*" "$@"
T
write broker 755 <<'B'
#!/usr/bin/env bash
# broker DATA_DIR PORT [key=value ...]: see tools/get-kafka.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$(mkdir -p "${1:?DATA_DIR}" && cd "$1" && pwd); port=${2:?PORT}; shift 2
{ cat <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port+1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port+1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$data/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
P
  printf '%s\n' "$@"; } >"$data/server.properties"
run() { java -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$here/jars/*" "$@"; }
if [ ! -e "$data/log/meta.properties" ]; then
  id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'AB' | tr -d '=')  # a first '-' would be an option
  run kafka.tools.StorageTool format -t "$id" -c "$data/server.properties" >/dev/null
fi
exec java -Xms"${KAFKA_HEAP:-512m}" -Xmx"${KAFKA_HEAP:-512m}" -Dlog4j2.configurationFile="$here/log4j2.properties" \
  -cp "$here/jars/*" kafka.Kafka "$data/server.properties"
B
echo "Apache Kafka $version in $dir"
