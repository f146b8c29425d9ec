#!/usr/bin/env bash
# install-deps.sh WHAT...: install what is missing on Debian, nothing where all is there. WHAT is any of
#   server   a MariaDB or MySQL server for the private servers of `cellog dev` and of the tests
#   compiler a C compiler: Go's race detector needs cgo
#   kafka    Java and Maven, with which get-kafka.sh fetches an Apache Kafka broker
#   chaos    libfaketime, which steps a server's clock in tests/chaos
#   clients  kcat, a JDK, Maven and Debian's Python client, which the interoperability tests drive
# Needs root (or sudo) only when something is missing.
set -euo pipefail
missing=()
need() { # need PACKAGE COMMAND...: PACKAGE unless one of the commands is there
  local package=$1 c; shift
  for c in "$@"; do command -v "$c" >/dev/null 2>&1 && return; [ -x "/usr/sbin/$c" ] && return; done
  missing+=("$package")
}
for what in "${@:-server}"; do
  case $what in
    server)
      [ -n "${CELLOG_MYSQLD:-}" ] || need mariadb-server-core mariadbd mysqld ;;
    compiler)
      command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || missing+=(gcc libc6-dev) ;;
    kafka)
      need default-jre-headless java; need maven mvn ;;
    clients) # confluent-kafka and the other pinned clients: tests/interop itself, by pip and Maven
      need kcat kcat; need default-jdk-headless javac; need maven mvn
      python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
      /usr/bin/python3 -c 'import kafka' >/dev/null 2>&1 || missing+=(python3-kafka)
      /usr/bin/python3 -c 'import lz4' >/dev/null 2>&1 || missing+=(python3-lz4) ;;
    chaos)
      ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || missing+=(libfaketime) ;;
    *) echo "install-deps.sh: $what: want server, compiler, kafka, clients or chaos" >&2; exit 2 ;;
  esac
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "install-deps.sh: installing ${missing[*]}" >&2
sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
if ! command -v apt-get >/dev/null; then
  echo "install-deps.sh: no apt-get here; install these by hand: ${missing[*]}" >&2; exit 1
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -qq update
for p in "${missing[@]}"; do
  case $p in
    mariadb-server-core) $sudo apt-get -qq install -y --no-install-recommends mariadb-server-core >/dev/null ||
      $sudo apt-get -qq install -y --no-install-recommends mariadb-server >/dev/null ;;
    *) $sudo apt-get -qq install -y --no-install-recommends "$p" >/dev/null ;;
  esac
done
