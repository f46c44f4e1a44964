#!/usr/bin/env bash
# Builds libfabric once into the cache, static, with the providers that need no special hardware, and with verbs, for which
# programs load what they need when they are asked for it (setup/verbs_on_demand.c).
#
#   libfabric.sh build    builds it unless it is there; prints the prefix
#   libfabric.sh prefix   prints the prefix and does nothing else
#
# Debian 12 has libfabric 1.17, which is too old (no auth keys), so the upstream source archive of a later Debian
# release is taken through apt, from the mirror that this machine's apt already uses.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
# shellcheck source=setup/debian_sources.sh
source "$WEIR_REPO/setup/debian_sources.sh"

prefix=$WEIR_CACHE/libfabric-$LIBFABRIC_VERSION-$LIBFABRIC_RECIPE
sources=$WEIR_CACHE/sources/libfabric-$LIBFABRIC_VERSION

# fetch_source: puts the unpacked upstream source into $sources/tree.
fetch_source() {
    mkdir -p "$sources"
    scratch_apt "$sources/apt" deb-src "$LIBFABRIC_SUITE"
    export APT_CONFIG=$sources/apt/apt.conf
    apt-get update
    (cd "$sources" && apt-get source --tar-only --only-source libfabric)
    local archives=("$sources"/libfabric_"$LIBFABRIC_VERSION".orig.tar.*)
    [[ -f ${archives[0]} ]] ||
        fail "$LIBFABRIC_SUITE has another libfabric than $LIBFABRIC_VERSION: $(ls "$sources")"
    rm -rf "$sources/tree"
    mkdir "$sources/tree"
    tar -xf "${archives[0]}" -C "$sources/tree" --strip-components=1
}

# compile: configures, builds and installs into $prefix in one rename, so that a prefix that exists is whole.
compile() {
    cd "$sources/tree"
    patch -p1 <"$WEIR_REPO/setup/libfabric-rxm.patch"
    patch -p1 <"$WEIR_REPO/setup/libfabric-mr.patch"
    patch -p1 <"$WEIR_REPO/setup/libfabric-shm.patch"
    [[ -x configure ]] || ./autogen.sh
    local off=() provider
    for provider in rxd udp sockets sm2 lnx mrail psm2 psm3 efa opx ucx usnic bgq cxi lpp \
        hook_debug hook_hmem perf trace profile monitor dmabuf_peer_mem; do
        off+=("--disable-$provider")
    done
    # Without memory monitors verbs keeps no registrations: kept ones let peers read and write after their end, and what was
    # exposed to be read be written to.
    ./configure --prefix="$prefix" --enable-static --disable-shared --with-pic --with-uring=no --with-numa=no \
        --enable-tcp --enable-shm --enable-rxm --enable-verbs --disable-xpmem --disable-memhooks-monitor \
        --disable-uffd-monitor --disable-kdreg2 "${off[@]}" CFLAGS="-O2 -g1"
    make -j"$(nproc)"
    rm -rf "$prefix.new"
    make install DESTDIR="$prefix.new"
    gcc -std=gnu11 -O2 -g1 -fPIC -Wall -Wextra -Werror -c "$WEIR_REPO/setup/verbs_on_demand.c" -o verbs_on_demand.o
    ar rs "$prefix.new$prefix/lib/libfabric.a" verbs_on_demand.o
    # Whoever links the archive needs none of the two libraries.
    sed -i -E 's/ -l(rdmacm|ibverbs)\>//g' "$prefix.new$prefix"/lib/{libfabric.la,pkgconfig/libfabric.pc}
    # The Slingshot extension's header: constants only, used where a vendor's libfabric is linked.
    cp prov/cxi/include/fi_cxi_ext.h "$prefix.new$prefix/include/rdma/"
    rm -rf "$prefix"
    mv "$prefix.new$prefix" "$prefix"
    rm -rf "$prefix.new" "$sources"
}

build() {
    if [[ -f $prefix/lib/libfabric.a ]]; then
        skip "libfabric $LIBFABRIC_VERSION"
    else
        step libfabric-source "libfabric $LIBFABRIC_VERSION: fetch the source (4 MB)" fetch_source
        step libfabric "libfabric $LIBFABRIC_VERSION: build, static, about 3 minutes" compile
    fi
    echo "$prefix"
}

case ${1:-build} in
build) with_lock libfabric build ;;
prefix) echo "$prefix" ;;
*) fail "usage: libfabric.sh build|prefix" ;;
esac
