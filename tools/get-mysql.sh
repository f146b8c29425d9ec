#!/usr/bin/env bash
# get-mysql.sh [DIR]: unpack a real MySQL server (9.7, Debian unstable's mysql-server-core with the libraries it needs)
# into DIR (default: .cache/mysql beside this folder), next to the system and not into it, and write DIR/mysqld, a
# wrapper that starts it through its own loader. Debian stable has only MariaDB; this is how the tests get the other
# flavour. Needs Debian, apt and dpkg-deb; root for nothing. Repeatable: it does nothing where DIR/mysqld answers
# --version. Parallel runs wait for each other; an interrupted one leaves nothing that a later one would trust.
set -euo pipefail
dir=${1:-$(cd "$(dirname "$0")/.." && pwd)/.cache/mysql}
dir=$(mkdir -p "$dir" && cd "$dir" && pwd)
exec 9>"$dir/.lock"
flock 9
if [ -x "$dir/mysqld" ] && "$dir/mysqld" --version 2>/dev/null; then exit 0; fi
for need in apt-get apt-cache dpkg-deb; do
  command -v "$need" >/dev/null || { echo "get-mysql.sh: needs $need, so Debian; elsewhere install MySQL 8.4 or newer and set CELLOG_MYSQLD" >&2; exit 1; }
done

# The mirror that this machine's apt already uses, for another suite of the same archive.
# shellcheck disable=SC2016  # $(URI) is apt's own
targets=$(apt-get indextargets --format '$(URI)' 'Created-By: Packages')
mirror=$(sed -n 's,^\(.*/debian\)/dists/.*,\1,p' <<<"$targets" | sed -n 1p)
[ -n "$mirror" ] || { echo "get-mysql.sh: apt knows no Debian mirror (run apt-get update)" >&2; exit 1; }
key=/usr/share/keyrings/debian-archive-keyring.gpg
work=$dir/.work
rm -rf "$work" "$dir/mysqld" "$dir/root"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,root}
echo "deb [signed-by=$key] $mirror sid main" >"$work/sources.list"
# No daemon or script that apt starts may keep the lock.
apt() { command "$@" -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
  -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root 9>&-; }
apt apt-get -qq update

# Everything that mysqld links to, and what that links to; never perl or the maintainer scripts.
depends=$(apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
  --no-replaces --no-enhances mysql-server-core)
mapfile -t pkgs < <(grep '^[a-z]' <<<"$depends" | grep -Ev '^(perl|libperl|libgdbm|debconf|dpkg|tar$|install-info)' | sort -u)
(cd "$work/debs" && apt apt-get -qq download "${pkgs[@]}")
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
mv "$work/root" "$dir/root"

cat >"$work/mysqld" <<'W'
#!/bin/sh
# Starts the unpacked MySQL server with its own libraries; all arguments are mysqld's.
here=$(cd "$(dirname "$0")" && pwd)/root
for lib in "$here"/usr/lib/*-linux-gnu*; do break; done
for loader in "$lib"/ld-linux*.so.*; do break; done
exec "$loader" --library-path "$lib" "$here/usr/sbin/mysqld" --no-defaults \
  --lc-messages-dir="$here/usr/share/mysql" --character-sets-dir="$here/usr/share/mysql/charsets" \
  --plugin-dir="$here/usr/lib/mysql/plugin" "$@"
W
chmod +x "$work/mysqld"
mv "$work/mysqld" "$dir/mysqld"
"$dir/mysqld" --version
