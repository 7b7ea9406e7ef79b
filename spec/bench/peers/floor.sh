#!/bin/sh
# The floor: the bare client in C, told as spec/bench/peers/run tells all.
#
#   floor.sh BARE PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...

case $2/$3 in
cycles/lock) ;;
*) exit 3 ;;
esac
exec "$1" "$8" "$4" "$5" spec/bench/acquire.lua spec/bench/release.lua
