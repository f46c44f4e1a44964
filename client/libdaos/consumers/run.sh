#!/usr/bin/env bash
# Builds programs that were written for DAOS (fio, ROMIO), and programs of several MPI ranks, with the client's headers and libraries, from Debian's source packages, and has them
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
    "$weir" dev up --detach --engines 2 --targets 2 --size 2GiB --redundancy 0
}

system_down() {
    # Before the first run and after a failed start there is no system to stop.
    "$weir" dev down --wipe >/dev/null 2>&1 || true
}

# with_system COMMAND...: runs a program for DAOS on the engines.
with_system() {
    WEIR_ATTACH=$WEIR_DEV_DIR/client.json timeout 300 "$@"
}

# fio_job NAME OPTION...: writes and verifies in the container that `weir dev` makes.
fio_job() {
    local name=$1
    shift
    with_system "$work/fio/fio" --name="$name" --ioengine=dfs --pool=tank --cont=home \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --group_reporting "$@"
}

# Jobs are threads of one process, or processes of their own.
run_fio() {
    fio_job sequential --thread --rw=write --bs=1m --size=64m --iodepth=8 --chunk_size=1048576 --object_class=SX
    fio_job random --thread --rw=randwrite --bs=16k --size=16m --iodepth=16 --numjobs=2
    fio_job uneven --thread --rw=randrw --bsrange=512-64k --bs_unaligned=1 --size=8m --iodepth=4
    fio_job threads --thread --rw=randrw --bs=4k --size=256k --iodepth=4 --numjobs=16
    fio_job processes --rw=randrw --bs=4k --size=1m --iodepth=16 --numjobs=4
}

# compile_romio: the MPI-IO of Debian's MPICH with its driver for DAOS, for programs that Debian's MPICH runs. What it otherwise takes
# of MPICH's inside, Debian's library doesn't show: it is built as for any MPI.
compile_romio() {
    local mpi=$work/mpi
    rm -rf "$work/romio" "$mpi"
    mkdir -p "$work/romio" "$mpi/bin"
    cp -a "$sources/mpich/tree/." "$work/romio"
    # Where its configure script looks for an installed MPI.
    ln -s /usr/include/*/mpich "$mpi/include"
    ln -s /usr/lib "$mpi/lib"
    ln -s "$(command -v mpicc.mpich)" "$mpi/bin/mpicc"
    cd "$work/romio/src/mpi/romio"
    sed -i 's/mpio_glue=mpich/mpio_glue=default/' configure
    sed -i 's/defined(MPICH)/defined(ROMIO_INSIDE_MPICH)/' adio/common/iscontig.c
    CC=mpicc.mpich LDFLAGS="-L$prefix/lib -Wl,-rpath,$prefix/lib" ./configure --with-mpi="$mpi" \
        --with-file-system=daos+ufs --with-daos="$prefix"
    make -j"$(nproc)" CC=mpicc.mpich
}

# romio_has_daos: fails unless the library has the driver.
romio_has_daos() {
    local symbols
    symbols=$(nm "$work/romio/src/mpi/romio/.libs/libromio.a" 2>/dev/null)
    [[ $symbols == *ADIO_DAOS_operations* ]] || fail "ROMIO was built without its driver for DAOS: see $WEIR_LOGS/consumers-romio.log"
}

# compile_ranks: programs of several MPI ranks; the second one with ROMIO in place of MPICH's own.
compile_ranks() {
    local own=$WEIR_REPO/client/libdaos/consumers romio=$work/romio/src/mpi/romio libraries
    libraries=("-L$prefix/lib" "-Wl,-rpath,$prefix/lib" -ldfs -lduns -lgurt -ldaos -luuid)
    mpicc.mpich -std=gnu11 -Wall -Wextra -Werror -g -I"$prefix/include" -o "$work/ranks" "$own/ranks.c" "${libraries[@]}"
    mpicc.mpich -std=gnu11 -Wall -Wextra -Werror -g -I"$romio/include" -o "$work/files" "$own/files.c" \
        "$romio/.libs/libromio.a" "$romio/mpl/.libs/libmpl.a" "${libraries[@]}"
}

run_ranks() {
    with_system mpirun.mpich -n 2 "$work/ranks" tank home
    with_system mpirun.mpich -n 4 "$work/ranks" tank home
    DAOS_BYPASS_DUNS=1 DAOS_POOL=tank DAOS_CONT=home with_system mpirun.mpich -n 2 "$work/files" daos:/together
}

mkdir -p "$sources" "$work"
step consumers-client "client for programs of others" compile_client
step consumers-sources "source of fio, of Debian" fetch fio
step consumers-fio "fio with its engine dfs" compile_fio
fio_has_dfs
"$WEIR_REPO/setup/packages.sh" consumers
step consumers-mpich "source of MPICH, of Debian" fetch mpich
step consumers-romio "ROMIO with its driver for DAOS" compile_romio
romio_has_daos
step consumers-ranks "programs of several MPI ranks" compile_ranks
trap system_down EXIT
step consumers-system "engines for it" system_up
step consumers-run "fio writes and verifies through DFS" run_fio
step consumers-mpi "MPI ranks share handles, and write and verify a file through ROMIO" run_ranks
say "consumers: fio's engine dfs, MPI ranks and ROMIO's driver for DAOS wrote and verified"
