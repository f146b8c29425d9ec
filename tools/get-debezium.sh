#!/usr/bin/env bash
# get-debezium.sh [DIR]: fetch Debezium's MySQL connector (3.6.1) and the Kafka Connect (4.3.0) that runs it as jars with
# Maven into DIR (default: .cache/debezium beside this folder), for bench/rig, and write a wrapper:
#   DIR/connect WORKER_FILE CONNECTOR_FILE  Kafka Connect, standalone, in the foreground; SIGTERM stops it. The worker's
#                                           file must say plugin.path=DIR/plugins
# CONNECT_JVM sets the JVM's options; the default is that of Kafka's own start scripts. Connect 4.4 breaks this connector;
# 4.3 works with brokers of 4.4.
# The newest Java found is used, 25 from apt where apt has it; DIR/versions says which. Needs Java 17 or newer and Maven,
# which tools/install-deps.sh installs. Repeatable: it does nothing where all is complete; parallel runs wait for each other.
set -euo pipefail
connect=4.3.0 debezium=3.6.1.Final
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$(cd "$here/.." && pwd)/.cache/debezium}
dir=$(mkdir -p "$dir" && cd "$dir" && pwd)
exec 9>"$dir/.lock"
flock 9

# Each JVM of this machine as "MAJOR PATH", the newest first.
javas() {
  local j
  for j in "${JAVA_HOME:-/nowhere}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    [ -x "$j" ] && "$j" -version 2>&1 | sed -n "s,^[a-z]* version \"\([0-9]*\).*,\1 $j,p"
  done | sort -rns -k1,1
}
newest() { local all; all=$(javas); head -n 1 <<<"$all"; }

"$here/install-deps.sh" kafka 9>&-
best=$(newest)
if [ "${best%% *}" -lt 25 ] && apt-cache show openjdk-25-jre-headless >/dev/null 2>&1; then
  echo "get-debezium.sh: installing openjdk-25-jre-headless" >&2
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq install -y --no-install-recommends openjdk-25-jre-headless >/dev/null 9>&-
  best=$(newest)
fi
java=${best#* }
[ "${best%% *}" -ge 17 ] || { echo "get-debezium.sh: $java is Java ${best%% *}: want 17 or newer" >&2; exit 1; }
[ "${best%% *}" -ge 25 ] || echo "get-debezium.sh: apt has no Java 25, so Debezium runs on Java ${best%% *}, which is slower" >&2

complete=$dir/.complete-$connect-$debezium
if [ ! -e "$complete" ]; then
  work=$dir/.work
  rm -rf "$work" "$dir/jars" "$dir/plugins" "$dir"/.complete-*
  trap 'rm -rf "$work"' EXIT
  # fetch NAME TO: the dependencies on standard input and all that they need, except what Connect itself gives a plugin.
  fetch() {
    mkdir -p "$work/$1"
    { echo "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>$1</artifactId>"
      echo '<version>1</version><packaging>pom</packaging><dependencies>'; cat; echo '</dependencies></project>'; } >"$work/$1/pom.xml"
    mvn -q -B -f "$work/$1/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$2" >&2 9>&-
  }
  dep() { echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version>${4:-}</dependency>"; }
  without() { for g in "$@"; do echo "<exclusion><groupId>$g</groupId><artifactId>*</artifactId></exclusion>"; done; }
  { dep org.apache.kafka connect-runtime "$connect"; dep org.apache.logging.log4j log4j-slf4j-impl 2.25.5; } | fetch connect "$dir/jars"
  dep io.debezium debezium-connector-mysql "$debezium" "<exclusions>$(without org.apache.kafka org.slf4j)</exclusions>" |
    fetch debezium "$dir/plugins/debezium-mysql"
  touch "$complete"
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
write connect 755 <<C
#!/bin/sh
# connect WORKER_FILE CONNECTOR_FILE: see tools/get-debezium.sh.
here=\$(cd "\$(dirname "\$0")" && pwd)
# shellcheck disable=SC2086  # several options
exec "$java" \${CONNECT_JVM:--Xms256M -Xmx2G -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent} \\
  -Djava.awt.headless=true -Dlog4j2.configurationFile="\$here/log4j2.properties" -cp "\$here/jars/*" \\
  org.apache.kafka.connect.cli.ConnectStandalone "\$@"
C
echo "Debezium $debezium, Kafka Connect $connect, Java $("$java" -version 2>&1 | sed -n 's,.*Runtime Environment ,,p')" | write versions 644
echo "$(cat "$dir/versions") in $dir"
