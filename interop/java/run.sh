#!/bin/sh
# Run the Java peer: run.sh VERSION COMMAND ARGS...   (VERSION: v4 or v5; see README.md)
# Builds on first use and again when a source is newer than the build. Stdout carries JSON lines only.
#   FIRETRAIL_JAVA_HEAP   heap size, default 2g
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

fail() { echo "run.sh: $1" >&2; exit 2; }

line=${1:-}
case $line in
  v4|v5) shift ;;
  *) fail "the first argument is '$line'; it must be v4 or v5, followed by a command (see $here/README.md)" ;;
esac

if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then
  java=$JAVA_HOME/bin/java
else
  java=$(command -v java) || fail "no java found; install a JDK (11 or newer) or set JAVA_HOME"
fi

target=$here/target/$line
stamp=$target/built
stale() {
  [ ! -f "$stamp" ] ||
    [ -n "$(find "$here/pom.xml" "$here/src/main" "$here/src/$line" -newer "$stamp" -print | head -n 1)" ]
}

build() {
  command -v mvn >/dev/null || fail "mvn not found; it is needed once to fetch and compile the peer"
  log=$here/target/$line.log
  # Offline first: a second build needs no network. The log keeps the output of the last try.
  mvn -B -o -f "$here/pom.xml" -P "$line" process-classes >"$log" 2>&1 ||
    mvn -B -f "$here/pom.xml" -P "$line" process-classes >"$log" 2>&1 ||
    fail "the build of $line failed, see $log"
  touch "$stamp"
}

if stale; then
  mkdir -p "$here/target"
  if command -v flock >/dev/null; then
    exec 9>"$here/target/$line.lock"
    flock 9                      # someone else may be building the same line
    if stale; then build; fi
    exec 9>&-
  else
    build
  fi
fi

# 5.x writes a RocksDB log under the user's home; it goes to the build folder instead.
heap=${FIRETRAIL_JAVA_HEAP:-2g}
case ${1:-} in
  bench-*) pace=-XX:+AlwaysPreTouch ;;       # as RocketMQ starts its broker
  *) pace="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" ;;   # a short life: start quickly
esac
# shellcheck disable=SC2086  # several options
exec "$java" $pace -Xms"$heap" -Xmx"$heap" -XX:MaxDirectMemorySize=12g \
  --add-opens=java.base/java.nio=ALL-UNNAMED \
  --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
  --add-opens=java.base/jdk.internal.ref=ALL-UNNAMED \
  --add-opens=java.base/java.lang=ALL-UNNAMED \
  --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED \
  -Duser.home="$target" \
  -cp "$target/classes:$target/lib/*" firetrail.interop.Cli "$@"
