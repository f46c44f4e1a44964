#!/usr/bin/env bash
# Builds programs that were written for DAOS with the client's headers and libraries, from Debian's source packages, and has them
# write and verify on engines of `weir dev`.
#
#   run.sh            with the programs of this repository as `cargo build` makes them
#
# What configure scripts don't find they leave out without an error: each program is asked whether it has DAOS's interface.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../../setup/steps.sh"
# shellcheck source=setup/debian_sources.sh
source "$WEIR_REPO/setup/debian_sources.sh"

sources=$WEIR_CACHE/consumers
work=$WEIR_REPO/target/consumers
prefix=$work/client
weir=$WEIR_REPO/target/debug/weir
export WEIR_DEV_DIR=$work/system

# fetch NAME: unpacks the upstream part of Debian's source package into $sources/NAME, unless it is there.
fetch() {
    local name=$1 archives suite
    [[ ! -e $sources/$name/whole ]] || return 0
    rm -rf "${sources:?}/$name"
    mkdir -p "$sources/$name/tree"
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    scratch_apt "$sources/$name/apt" deb-src "$suite"
    (
        export APT_CONFIG=$sources/$name/apt/apt.conf
        cd "$sources/$name"
        apt-get update
        apt-get source --tar-only --only-source "$name"
    )
    archives=("$sources/$name/$name"_*.orig.tar.*)
    [[ -f ${archives[0]} ]] || fail "Debian has no source archive of $name: $(ls "$sources/$name")"
    tar -xf "${archives[0]}" -C "$sources/$name/tree" --strip-components=1
    touch "$sources/$name/whole"
}

compile_client() {
    cd "$WEIR_REPO"
    cargo build --locked --workspace
    setup/install_client.sh target/debug/libdaos.so "$prefix"
}

# compile_fio: a tree of its own for each client, since its objects are made with these headers.
compile_fio() {
    rm -rf "$work/fio"
    cp -a "$sources/fio/tree" "$work/fio"
    cd "$work/fio"
    LDFLAGS="-L$prefix/lib -Wl,-rpath,$prefix/lib" ./configure --extra-cflags="-I$prefix/include" --disable-native
    make -j"$(nproc)"
}

# fio_has_dfs: fails unless the program has the engine, and it is linked with this client.
fio_has_dfs() {
    local engines linked
    engines=$("$work/fio/fio" --enghelp)
    [[ $engines == *dfs* ]] || fail "fio was built without its engine dfs: see $WEIR_LOGS/consumers-fio.log"
    linked=$(ldd "$work/fio/fio")
    [[ $linked == *"$prefix/lib/libdaos.so.2"* ]] ||
        fail "fio's engine dfs isn't linked with $prefix/lib/libdaos.so.2: $linked"
}

system_up() {
    system_down
    mkdir -p "$work"
    "$weir" dev up --detach --engines 2 --targets 2 --size 2GiB
}

system_down() {
    # Before the first run and after a failed start there is no system to stop.
    "$weir" dev down --wipe >/dev/null 2>&1 || true
}

# fio_job NAME OPTION...: writes and verifies in the container that `weir dev` makes.
fio_job() {
    local name=$1
    shift
    WEIR_ATTACH=$WEIR_DEV_DIR/client.json timeout 300 "$work/fio/fio" --name="$name" --ioengine=dfs --pool=tank --cont=home \
        --thread --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --group_reporting "$@"
}

run_fio() {
    fio_job sequential --rw=write --bs=1m --size=64m --iodepth=8 --chunk_size=1048576 --object_class=SX
    fio_job random --rw=randwrite --bs=16k --size=16m --iodepth=16 --numjobs=2
    fio_job uneven --rw=randrw --bsrange=512-64k --bs_unaligned=1 --size=8m --iodepth=4
}

mkdir -p "$sources" "$work"
step consumers-client "client for programs of others" compile_client
step consumers-sources "source of fio, of Debian" fetch fio
step consumers-fio "fio with its engine dfs" compile_fio
fio_has_dfs
trap system_down EXIT
step consumers-system "engines for it" system_up
step consumers-run "fio writes and verifies through DFS" run_fio
say "consumers: fio's engine dfs wrote and verified"
