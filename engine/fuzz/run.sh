#!/usr/bin/env bash
# Builds the fuzzers with the compiler's coverage counters, which the stable toolchain can put in, and runs all of them for
# FUZZ_SECONDS together. Arguments go to weir-fuzz: names of fuzzers, --replay FILE.
set -euo pipefail

WEIR_SCRIPT=engine/fuzz/run.sh
WEIR_NAMES=' superblock checkpoint log index flips operations wire requests channel address pieces files drive '
WEIR_VALUED=' --seconds --seed --corpus --failures --replay '
WEIR_BARE=' '

usage() {
    cat <<TEXT
Builds the fuzzers with coverage counters and runs them.

Usage: engine/fuzz/run.sh [OPTIONS] [NAMES]...

Fuzzers; all of them when none is named:
 $WEIR_NAMES

Options:
  --seconds N      seconds for all of them together [default: \$FUZZ_SECONDS, or 300]
  --seed N         what inputs are drawn from [default: 1]
  --corpus FOLDER  where inputs that reach something new are kept [default: target/fuzz/corpus]
  --failures FOLDER
                   where inputs that fail are kept [default: target/fuzz/failures]
  --replay FILE    run this one input again instead, in the fuzzer that is named
  -h, --help       print this
TEXT
}

# shellcheck source=setup/arguments.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/arguments.sh"
check_arguments "$@"
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"
cd "$WEIR_REPO"
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target the counters are left out of build scripts and macros, which couldn't be linked with them.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters" \
    cargo build --locked --profile fuzz --target "$host" --target-dir target/fuzz/build -p weir-fuzz --bin weir-fuzz
exec "target/fuzz/build/$host/fuzz/weir-fuzz" "$@"
