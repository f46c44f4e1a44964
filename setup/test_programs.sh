#!/usr/bin/env bash
# Builds the test programs of the workspace's Rust crates and runs them, two at a time: most of them wait, for processes
# that start or for time-outs. Documentation tests come last. A program's output is printed when the program has ended.
#
#   test_programs.sh          runs all of them
#   test_programs.sh run ...  runs one; this script calls itself so
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=setup/steps.sh
source setup/steps.sh

# Programs that run at the same time.
LANES=2
# The programs that take longest start first, so that none of them runs alone at the end.
LONGEST="posix redundancy store sim command dfs checkers processes stalls weir_rpc weir_store"
LOGS=target/test-programs

# run NAME MANIFEST EXECUTABLE: as `cargo test` runs a test program, in the folder of its package.
run() {
    local name=$1 manifest=$2 executable=$3 began=$SECONDS status=0 log
    local TIMEFORMAT='%U %S'
    log=$PWD/$LOGS/$(basename "$executable").log
    { time (
        cd "$(dirname "$manifest")"
        export CARGO_MANIFEST_DIR=$PWD WEIR_BUILT=1
        "$executable" >"$log" 2>&1 </dev/null
    ); } 2>"$log.cpu" || status=$?
    {
        # Outputs of programs that end at the same time don't mix.
        flock 9
        printf '\n     Running %s of %s\n' "$name" "$(dirname "${manifest#"$PWD"/}")"
        cat "$log"
        ((status == 0)) || printf '     FAILED (status %s): %s\n' "$status" "$name"
        printf '     %s took %s s, and of processors (user, kernel) %s s\n' "$name" "$((SECONDS - began))" "$(cat "$log.cpu")"
    } 9>>"$LOGS/lock"
    return "$status"
}

# programs: prints name, manifest and executable of each test program, the longest first.
programs() {
    cargo test --locked --workspace --no-run --message-format json |
        jq -r --arg longest "$LONGEST" '
            ($longest | split(" ")) as $first
            | select(.executable != null and .profile.test)
            | .target.name as $name
            | [($first | index($name)) // ($first | length), $name, .manifest_path, .executable]
            | @tsv' |
        sort -n -s -k1,1 | cut -f2-
}

run_all() {
    local status=0
    mkdir -p "$LOGS"
    programs >"$LOGS/programs"
    [[ -s $LOGS/programs ]] || fail "cargo named no test program"
    tr '\n' '\t' <"$LOGS/programs" | tr '\t' '\0' | xargs -0 -n 3 -P "$LANES" "$0" run || status=$?
    cargo test --locked --workspace --doc || status=$?
    ((status == 0)) || fail "test programs failed; search the output for FAILED. Outputs are in $LOGS"
}

case ${1:-all} in
    all) run_all ;;
    run) run "${@:2}" ;;
    *) fail "usage: test_programs.sh" ;;
esac
