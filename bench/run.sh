#!/usr/bin/env bash
# Builds the release binaries and measures them: see bench/src. The processes run under the normal scheduling policy, on
# all cores; a run on a busy machine says so in its ratios, not in its bare figures.
set -euo pipefail

usage() {
    cat <<'TEXT'
Builds the release binaries and measures Weir beside references.

Usage: bench/run.sh [OPTIONS] [GROUPS]...

Groups; all of them when none is named:
  fabric                  the RPC layer beside the bare fabric
  receive                 standard beside multi-receive, with client processes on this machine
  receive-simulated       standard beside multi-receive, with up to 53,248 clients in the simulator
  not-ready-simulated     eager requests beside a rendezvous, with a receiver that is ready and one that is not
  registration            what registering memory takes on this machine
  registration-simulated  registration methods, with up to 53,248 clients in the simulator
  crowd-simulated         ten thousand clients against one target, in the simulator
  membership-simulated    membership of 1,024 engines that lose messages, in the simulator
  store                   a target's store beside raw io_uring and beside other storage libraries
  client                  the C client beside bare requests
  interception            programs that pass a mount, beside DFS and beside the mount
  redundancy              objects with two copies beside objects with one, and what the loss of an engine costs
  files                   files through a mount beside the local file system
  life                    start, restart with data, connect, memory at rest

Options:
  --scratch FOLDER        where data, mounts and reference files go [default: target/bench/scratch]
  --binaries FOLDER       the binaries to measure [default: target/release]
  --operations PROGRAM    the client in C [default: the one that is built]
  --references PROGRAM    what measures other storage libraries [default: the one that is built]
  --output FILE           where the results go [default: target/bench/results.json]
  --small-files N         files made in the small-file rows [default: 2000]
  --sequential-mib N      MiB written and read in the sequential rows [default: 512]
  --providers NAMES       providers of the fabric rows, separated by commas
  --fabric-part PART      only this part of the fabric group: small, bulk, flood, mercury or threads
  --store-part PART       only this part of the store group: rates, large, latency, memory, keys, backlog, snapshots or
                          counts
  --without-instructions  leave out the rows that count instructions
  -h, --help              print this
TEXT
}

WEIR_SCRIPT=bench/run.sh
WEIR_NAMES=' fabric receive receive-simulated not-ready-simulated registration registration-simulated crowd-simulated membership-simulated store client interception redundancy files life '
WEIR_VALUED=' --scratch --binaries --operations --references --output --small-files --sequential-mib --providers --fabric-part --store-part '
WEIR_BARE=' --without-instructions '
# shellcheck source=setup/arguments.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/arguments.sh"
check_arguments "$@"
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
cd "$WEIR_REPO"
# The libraries that the store is measured beside: a workspace of its own, linked with Debian's RocksDB.
ROCKSDB_LIB_DIR=$(dirname "$(readlink -f "$(gcc -print-file-name=librocksdb.so)")") ROCKSDB_INCLUDE_DIR=/usr/include \
    cargo build --locked --release --manifest-path bench/references/Cargo.toml --target-dir target/references
packages=(weir-daemon weir-cli weir-fuse weir-libdaos weir-intercept weir-bench)
features=()
if finds_mercury; then
    printf "Mercury %s is measured beside the native providers.\n" "$(pkg-config --modversion mercury)"
    features=(--features "$(printf '%s/mercury,' "${packages[@]}")")
else
    printf "Mercury is not measured: pkg-config finds no 'mercury >= 2.4' (docs/how-to/mercury.md).\n"
fi
cargo build --locked --release "${packages[@]/#/--package=}" "${features[@]}"
# The client is linked as programs for DAOS are.
client=target/bench/client
setup/install_client.sh target/release/libdaos.so "$client/installed" target/release/libweir_direct.so
cc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$client/operations" -I "$client/installed/include" bench/src/client/operations.c \
    -L "$client/installed/lib" -ldfs -ldaos -lpthread -Wl,-rpath,"$PWD/$client/installed/lib"
exec target/release/weir-bench "$@"
