#!/usr/bin/env bash
# Runs the tests of the fabric, and of RPC between processes, with another libfabric than the one that is built in, as a
# shared library.
#
#   newer_libfabric.sh            with the release that MPICH's wheel brings (versions.env)
#   newer_libfabric.sh FOLDER     with FOLDER/libfabric.so.1: a vendor's
#
# The C side is compiled against the built-in library's headers: an interface of libfabric stays what it is.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$WEIR_REPO"

kept=$WEIR_CACHE/libfabric-newer-$NEWER_LIBFABRIC_VERSION

# fetch_newer: puts the library of the wheel into $kept.
fetch_newer() {
    rm -rf "$kept.new"
    mkdir -p "$kept.new/wheel"
    python3 -m pip download --no-deps --dest "$kept.new/wheel" "mpich==$NEWER_LIBFABRIC_MPICH"
    python3 -m zipfile -e "$kept.new"/wheel/mpich-*.whl "$kept.new/wheel"
    cp "$kept.new"/wheel/mpich-*.data/data/lib/mpich/libfabric.so.1 "$kept.new/"
    rm -rf "$kept.new/wheel" "$kept"
    mv "$kept.new" "$kept"
}

folder=${1:-}
if [[ -z $folder ]]; then
    if [[ -f $kept/libfabric.so.1 ]]; then
        skip "libfabric $NEWER_LIBFABRIC_VERSION"
    else
        step libfabric-newer "libfabric $NEWER_LIBFABRIC_VERSION: fetch (13 MB)" fetch_newer
    fi
    folder=$kept
    export WEIR_LIBFABRIC_WANTED=${NEWER_LIBFABRIC_VERSION%.*}
fi
[[ -f $folder/libfabric.so.1 ]] || fail "$folder has no libfabric.so.1: name the folder of a shared libfabric"
folder=$(realpath "$folder")
prefix=$(setup/libfabric.sh build)

# What pkg-config is to find.
found=$WEIR_REPO/target/libfabric
mkdir -p "$found/lib"
ln -sfn "$folder/libfabric.so.1" "$found/lib/libfabric.so"
cat >"$found/libfabric.pc" <<PC
Name: libfabric
Description: the library of this run
Version: ${NEWER_LIBFABRIC_VERSION}
Cflags: -I$prefix/include
Libs: -L$found/lib -lfabric
PC
export WEIR_LIBFABRIC=system PKG_CONFIG_PATH=$found LD_LIBRARY_PATH=$folder
say "fabric and RPC with $folder/libfabric.so.1"
cargo test --locked -p weir-fabric
cargo test --locked -p weir-rpc --test processes --test vandals
cargo test --locked -p weir-rpc --test rpc -- misbehaving:: senders::
say "fabric and RPC with $folder/libfabric.so.1: all passed"
