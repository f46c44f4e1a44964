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
cargo build --locked --release -p weir-daemon -p weir-cli -p weir-fuse -p weir-bench
exec target/release/weir-bench "$@"
