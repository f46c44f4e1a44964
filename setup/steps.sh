# Printing of steps with their times, and the cache directory. Sourced by the other set-up scripts.
# shellcheck shell=bash

WEIR_REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WEIR_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/weir
# Output of the tools that a step runs. A step that fails prints the end of its own log.
WEIR_LOGS=$WEIR_CACHE/logs
export WEIR_REPO WEIR_CACHE WEIR_LOGS
# shellcheck source=setup/versions.env
source "$WEIR_REPO/setup/versions.env"

# say TEXT...: one line for the user, with the time of day.
say() {
    printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" >&2
}

# fail TEXT...: says what is wrong and what to do, and ends the script.
fail() {
    printf '%s  error: %s\n' "$(date +%H:%M:%S)" "$*" >&2
    exit 1
}

# step NAME DESCRIPTION COMMAND...: runs the command with its output in the log NAME, says what it does, how long it
# took, and on failure shows the log's last lines.
step() {
    local step_name=$1 description=$2 began=$SECONDS log status
    shift 2
    mkdir -p "$WEIR_LOGS"
    log=$WEIR_LOGS/$step_name.log
    say "$description ..."
    # Not as the condition of an if: there, bash would go on after a command that fails.
    set +e
    (
        set -e
        "$@"
    ) >"$log" 2>&1
    status=$?
    set -e
    if ((status == 0)); then
        say "$description: done in $((SECONDS - began)) s"
        return 0
    fi
    tail -n 25 "$log" >&2
    fail "$description failed after $((SECONDS - began)) s; the whole log is $log"
}

# skip DESCRIPTION: says that a step has nothing to do.
skip() {
    say "$1: already there"
}

# with_lock NAME COMMAND...: runs the command while no other set-up runs one of that name. (Bash functions see the local
# variables of those that call them, hence the prefixed names here and in step.)
with_lock() {
    local lock_name=$1
    shift
    mkdir -p "$WEIR_CACHE/locks"
    (
        flock -w 3600 9 || fail "waited an hour for $WEIR_CACHE/locks/$lock_name: is another set-up stuck?"
        "$@"
    ) 9>"$WEIR_CACHE/locks/$lock_name"
}

# with_passing_go_cache: has Go build in a cache of this script's own, which goes when the script ends. What pinned programs are
# made of nobody asks for again, and it is gigabytes.
with_passing_go_cache() {
    mkdir -p "$WEIR_CACHE"
    GOCACHE=$(mktemp --directory --tmpdir="$WEIR_CACHE")
    export GOCACHE
    trap 'rm -rf "$GOCACHE"' EXIT
}

# finds_mercury: whether pkg-config finds a Mercury that the cargo feature can be built with.
finds_mercury() {
    pkg-config --exists 'mercury >= 2.4'
}
