#!/bin/sh
# Starts a helper process of a test, a server or a proxy, which ends with the
# test.
#
#   setsid sh daemon.sh PARENT DIR READY COMMAND [ARG...]
#
# Runs COMMAND with DIR/log as its output and its pid in DIR/pid, and prints
# that pid when the log has a line with the text READY. If COMMAND ends before
# that, prints its log on standard error and fails.
#
# A watcher stays beside it. When process PARENT has gone, be it by SIGKILL, it
# kills what DIR/pid names and removes DIR; when DIR has gone it just ends. So
# whoever stops COMMAND itself removes DIR/pid or DIR too. Starting again in
# the same DIR keeps the watcher of the first time.

set -u
parent=$1 dir=$2 ready=$3
shift 3

# A process that nobody has reaped yet is as good as gone.
alive() {
    kill -0 "$1" 2>/dev/null || return 1
    while read -r key value _; do
        [ "$key" = State: ] && { [ "$value" != Z ]; return; }
    done <"/proc/$1/status" 2>/dev/null
    return 0
}

is_ready() {
    while read -r line; do
        case $line in *"$ready"*) return 0 ;; esac
    done <"$dir/log"
    return 1
}

watch() {
    while alive "$parent" && [ -d "$dir" ]; do sleep 0.1; done
    [ -f "$dir/pid" ] && kill -KILL "$(cat "$dir/pid")"
    case $dir in */rlock-*) rm -rf "$dir" ;; esac
}

if [ ! -e "$dir/watched" ]; then
    : >"$dir/watched"
    # exec, or the shell keeps the caller's pipe open to put it back later.
    (exec </dev/null >/dev/null 2>&1 && watch) &
fi

: >"$dir/log"
"$@" </dev/null >>"$dir/log" 2>&1 &
pid=$!
echo "$pid" >"$dir/pid"

tries=0
until is_ready; do
    tries=$((tries + 1))
    if ! alive "$pid" || [ "$tries" -gt 5000 ]; then
        rm -f "$dir/pid"
        kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null
        cat "$dir/log" >&2
        exit 1
    fi
    sleep 0.001
done
echo "$pid"
