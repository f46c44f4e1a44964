#!/usr/bin/env bash
# Builds the release binaries and measures them: see bench/src. The processes run under the normal scheduling policy, on
# all cores; a run on a busy machine says so in its ratios, not in its bare figures.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
cd "$WEIR_REPO"
# The libraries that the store is measured beside: a workspace of its own, linked with Debian's RocksDB.
ROCKSDB_LIB_DIR=$(dirname "$(readlink -f "$(gcc -print-file-name=librocksdb.so)")") ROCKSDB_INCLUDE_DIR=/usr/include \
    cargo build --locked --release --manifest-path bench/references/Cargo.toml --target-dir target/references
packages=(weir-daemon weir-cli weir-fuse weir-bench)
features=()
if finds_mercury; then
    printf "Mercury %s is measured beside the native providers.\n" "$(pkg-config --modversion mercury)"
    features=(--features "$(printf '%s/mercury,' "${packages[@]}")")
else
    printf "Mercury is not measured: pkg-config finds no 'mercury >= 2.4' (docs/how-to/mercury.md).\n"
fi
cargo build --locked --release "${packages[@]/#/--package=}" "${features[@]}"
exec target/release/weir-bench "$@"
