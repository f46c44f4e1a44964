#!/usr/bin/env bash
# Starts and stops the Docker engine.
#
#   docker.sh start    starts it, unless it answers already
#   docker.sh stop     stops it, if it was this script that started it
#   docker.sh status   says whether it answers
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# How long dockerd may take to answer; it restores its networks and containers first. Seconds.
START_DEADLINE=90
# How long running containers get to end. Seconds.
STOP_DEADLINE=60

state=/run/weir
pid_file=$state/dockerd.pid
log=$WEIR_LOGS/dockerd.log

answers() {
    timeout 10 docker info >/dev/null 2>&1
}

# lacks_capabilities: whether this machine's bounding set is less than what its kernel knows.
lacks_capabilities() {
    local last bound
    last=$(</proc/sys/kernel/cap_last_cap)
    bound=$(awk '$1 == "CapBnd:" { print $2 }' /proc/self/status)
    (((16#$bound & ((1 << (last + 1)) - 1)) != (1 << (last + 1)) - 1))
}

# forget_dead_engine: removes the pid file of an engine that was killed. dockerd itself takes whatever has the number now,
# and even a process that has ended and waits for its parent, for a running engine.
forget_dead_engine() {
    local file=$state/docker-engine.pid process
    [[ -f $file ]] || return 0
    # ps fails when nothing has that number: then the file is left over.
    if ! process=$(ps -o comm=,stat= -p "$(<"$file")") || [[ $process != dockerd* || $process == *Z* ]]; then
        rm -f "$file"
    fi
}

start_by_hand() {
    local options=(--pidfile "$state/docker-engine.pid")
    forget_dead_engine
    mkdir -p "$state" "$WEIR_LOGS"
    if lacks_capabilities; then
        command -v capsh >/dev/null || fail "capsh is missing: run 'apt-get install libcap2-bin', then try again"
        say "this machine lacks some capabilities: privileged containers get only those that it has"
        install -m 0755 "$WEIR_REPO/setup/runc-within-bounds.sh" "$state/runc-within-bounds"
        options+=(--add-runtime "within-bounds=$state/runc-within-bounds" --default-runtime within-bounds)
    fi
    # A session of its own, so that it outlives the terminal that started it.
    setsid nohup dockerd "${options[@]}" >"$log" 2>&1 </dev/null 9>&- &
    echo "$!" >"$pid_file"
}

wait_until_it_answers() {
    local began=$SECONDS
    until answers; do
        if [[ -f $pid_file ]] && ! kill -0 "$(<"$pid_file")" 2>/dev/null; then
            tail -n 15 "$log" >&2
            fail "dockerd ended at once; its log is $log"
        fi
        ((SECONDS - began < START_DEADLINE)) || fail "dockerd does not answer after $START_DEADLINE s; its log is $log"
        sleep 0.3
    done
    say "Docker engine answers after $((SECONDS - began)) s"
}

start() {
    if answers; then
        return
    fi
    command -v dockerd >/dev/null || fail "there is no Docker engine: run 'setup/setup.sh cluster'"
    ((EUID == 0)) || fail "the Docker engine does not answer: start it, or run this as root"
    if [[ -d /run/systemd/system ]]; then
        systemctl start docker
    else
        start_by_hand
    fi
    wait_until_it_answers
}

stop() {
    local pid began=$SECONDS
    [[ -f $pid_file ]] || return 0
    pid=$(<"$pid_file")
    # Otherwise it has ended by itself.
    if kill "$pid" 2>/dev/null; then
        while kill -0 "$pid" 2>/dev/null; do
            ((SECONDS - began < STOP_DEADLINE)) || fail "dockerd ($pid) is still there after $STOP_DEADLINE s; its log is $log"
            sleep 0.2
        done
    fi
    rm -f "$pid_file"
    say "Docker engine stopped"
}

case ${1:-} in
start) with_lock docker start ;;
stop) with_lock docker stop ;;
status)
    answers || fail "the Docker engine does not answer: run 'setup/docker.sh start'"
    say "the Docker engine answers"
    ;;
*) fail "usage: docker.sh start|stop|status" ;;
esac
