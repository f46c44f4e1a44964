#!/usr/bin/env bash
# House rules that no other tool checks. Prints each breach as file:line and fails if there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A file longer than this is looked at; the list names those that are one thing all the same.
readonly LINES_MAX=700
readonly LONG_FILES=setup/long-files.txt
breaches=0

breach() {
    printf '%s\n' "$*" >&2
    breaches=$((breaches + 1))
}

sources() {
    git ls-files -- '*.rs' '*.go' '*.c' '*.h' '*.sh' '*.py' | grep -vE '(\.pb\.go|_grpc\.pb\.go|zz_generated.*\.go)$'
}

check_length() {
    local file lines
    while read -r file; do
        lines=$(wc -l <"$file")
        if ((lines > LINES_MAX)) && ! grep -q "^$file " "$LONG_FILES"; then
            breach "$file: $lines lines; split it by responsibility, or name it with a reason in $LONG_FILES"
        fi
    done < <(sources)
}

# check_absent MESSAGE REGEX FILES...: no line of the files matches.
check_absent() {
    local message=$1 regex=$2 hits
    shift 2
    hits=$(git grep -nE "$regex" -- "$@" || test $? -eq 1)
    if [[ -n $hits ]]; then
        breach "$message:"$'\n'"$hits"
    fi
}

check_names() {
    local found
    # The C headers have the names that programs for DAOS include.
    found=$(git ls-files ':!client/libdaos/include' | grep -E '(^|/)(util|utils|common|helpers?|misc)(\.[a-z]+|/)' || test $? -eq 1)
    if [[ -n $found ]]; then
        breach "these names say nothing about what is inside:"$'\n'"$found"
    fi
}

check_length
check_names
check_absent "unfinished" '\b(todo!|unimplemented!|TODO|FIXME|XXX|[Ss]tub|[Ff]or now)\b' '*.rs' '*.go' '*.c' '*.h' '*.proto' \
    '*.py' '*.yaml' '*.md' ':!CONTRIBUTING.md'
# Determinism is won by structure: above floor 2 only the runtime's handle gives time, randomness, tasks and files.
check_absent "the runtime's handle is the only source of time, randomness and threads here" \
    'Instant::now|SystemTime::now|std::thread::spawn|std::fs::|std::net::|getrandom|rand::' \
    'engine/rpc/src' 'engine/format/src' 'engine/store/src' 'engine/inspect/src' 'engine/group/src' 'engine/raft/src' 'engine/pool/src' \
    'engine/object/src' 'engine/layout/src' 'engine/proto/src'

# A small request takes no lock of ours: bench/src/counted.rs counts those of the C library, and Rust's make no call that could be
# counted. These files have some all the same: for names that are resolved, questions that a thread of its own answers, memory of the
# application that goes, what providers can do, locks of dead processes, connections that others make, and what other threads leave for an executor, which looks
# first whether there is any.
check_absent "a lock where small requests pass; name the file in setup/tidy.sh if none passes there" \
    '\b(Mutex|RwLock|Condvar|OnceLock|LazyLock|sync::mpsc)\b' \
    'engine/rpc/src' 'engine/fabric/src' 'engine/runtime/src' 'engine/memory/src' ':!*/tests.rs' \
    ':!engine/runtime/src/real/remote.rs' ':!engine/memory/src/lib.rs' \
    ':!engine/fabric/src/'{memory/monitor,naming/{resolve,published/publisher},libfabric/{provider_facts,stale_locks,connection_limit,reference}}.rs

if ((breaches > 0)); then
    printf '%d house rules broken\n' "$breaches" >&2
    exit 1
fi
