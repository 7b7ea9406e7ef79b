#!/bin/sh
# Start-up time of `rlockctl -e ''` and size of the binary. Prints JSON.
#
#   start.sh RLOCKCTL

set -eu
runs=200
stripped=$(mktemp "${TMPDIR:-/tmp}/rlock-XXXXXX")
trap 'rm -f "$stripped"' EXIT
strip -o "$stripped" "$1"
chmod +x "$stripped"

begun=$(date +%s%N)
i=0
while [ "$i" -lt "$runs" ]; do
    "$stripped" -e ''
    i=$((i + 1))
done
ended=$(date +%s%N)

us=$(((ended - begun) / runs / 1000))
printf '{"ms":%d.%03d,"bytes":%d}\n' $((us / 1000)) $((us % 1000)) \
    "$(wc -c <"$stripped")"
