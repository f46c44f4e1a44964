#!/usr/bin/env bash
# Builds the fuzzers with the compiler's coverage counters, which the stable toolchain can put in, and runs all of them for
# FUZZ_SECONDS together. Arguments go to weir-fuzz: names of fuzzers, --replay FILE.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"
cd "$WEIR_REPO"
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target the counters are left out of build scripts and macros, which couldn't be linked with them.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters" \
    cargo build --locked --profile fuzz --target "$host" --target-dir target/fuzz/build -p weir-fuzz --bin weir-fuzz
exec "target/fuzz/build/$host/fuzz/weir-fuzz" "$@"
