#!/usr/bin/env bash
# Fetches the kernel of the virtual machine that tests drives once into the cache, and prints its path.
#
#   machine_kernel.sh
#
# It is Debian's kernel for clouds of a later release, through apt, from the mirror that this machine's apt already uses.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
# shellcheck source=setup/debian_sources.sh
source "$WEIR_REPO/setup/debian_sources.sh"

kernel=$WEIR_CACHE/kernel-$MACHINE_KERNEL_SUITE-$MACHINE_KERNEL_RECIPE/vmlinuz

fetch_kernel() {
    local work=$WEIR_CACHE/sources/kernel package
    rm -rf "$work"
    scratch_apt "$work/apt" deb "$MACHINE_KERNEL_SUITE"
    export APT_CONFIG=$work/apt/apt.conf
    apt-get update
    # The package of that name depends on the newest one, whose name has the version.
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
    [[ -n $package ]] || fail "$MACHINE_KERNEL_SUITE has no kernel for clouds"
    (cd "$work" && apt-get download "$package")
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work" --wildcards './boot/vmlinuz-*'
    mkdir -p "$(dirname "$kernel")"
    mv "$work"/boot/vmlinuz-* "$kernel"
    rm -rf "$work"
}

fetch() {
    if [[ -f $kernel ]]; then
        skip "the virtual machine's kernel"
    else
        step kernel "The virtual machine's kernel of Debian $MACHINE_KERNEL_SUITE: fetch (about 40 MB)" fetch_kernel
    fi
    echo "$kernel"
}

with_lock kernel fetch
