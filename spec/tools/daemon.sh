#!/bin/sh
# Starts a helper process of a test, a server or a proxy, which ends with the
# test.
#
#   setsid sh daemon.sh PARENT DIR READY COMMAND [ARG...]
#
# Runs COMMAND with its output in DIR/log and its pid in DIR/pid, and prints
# the pid once a line of the log contains READY. If COMMAND ends earlier, prints
# the log on standard error and fails.
#
# A watchdog stays. Once process PARENT has gone, even by SIGKILL, it kills the
# pid in DIR/pid and removes DIR; once DIR has gone, it just ends. To stop
# COMMAND, kill it and remove DIR/pid or DIR. If COMMAND is started again in the
# same DIR, the first watchdog stays in charge.

set -u
parent=$1 dir=$2 ready=$3
shift 3

# A zombie counts as dead.
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
    # exec, because the shell would keep the caller's pipe open to restore it.
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
