#!/usr/bin/env bash
# Fetches a kernel for virtual machines once into the cache, and prints its path.
#
#   machine_kernel.sh drives   the one for clouds, which has NVMe built in
#   machine_kernel.sh rdma     the usual one, beside which modules/ has soft RoCE and all that it needs, each module behind
#                              those that it needs when they are taken by name
#
# They are Debian's of a later release, through apt, from the mirror that this machine's apt already uses.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
# shellcheck source=setup/debian_sources.sh
source "$WEIR_REPO/setup/debian_sources.sh"

# Each behind those that it needs: soft RoCE on a network interface that leads nowhere, and connections on it. The checksum of
# its packets is loaded first because the kernel of the machine has no program that it could ask for it.
readonly RDMA_MODULES=(configfs crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs ib_cm iw_cm rdma_cm rdma_ucm rdma_rxe
    dummy)

# fetch_kernel PACKAGE FOLDER [MODULE...]: puts the kernel that a package of Debian stands for, and these modules, into a
# folder in one rename, so that a folder that exists is whole.
fetch_kernel() {
    local newest=$1 folder=$2 work=$WEIR_CACHE/sources/kernel package module number=10
    shift 2
    rm -rf "$work"
    scratch_apt "$work/apt" deb "$MACHINE_KERNEL_SUITE"
    export APT_CONFIG=$work/apt/apt.conf
    apt-get update
    # The package of that name depends on the newest one, whose name has the version.
    package=$(apt-cache depends "$newest" | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
    [[ -n $package ]] || fail "$MACHINE_KERNEL_SUITE has no $newest"
    (cd "$work" && apt-get download "$package")
    local wanted=('./boot/vmlinuz-*')
    for module in "$@"; do
        wanted+=("*/$module.ko.xz")
    done
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work" --wildcards "${wanted[@]}"
    mkdir -p "$work/kept/modules"
    mv "$work"/boot/vmlinuz-* "$work/kept/vmlinuz"
    for module in "$@"; do
        find "$work" -name "$module.ko.xz" -exec xz -dc {} + >"$work/kept/modules/$number-$module.ko"
        number=$((number + 1))
    done
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    mv "$work/kept" "$folder"
    rm -rf "$work"
}

# fetch NAME DESCRIPTION PACKAGE [MODULE...]
fetch() {
    local name=$1 description=$2 package=$3
    local folder=$WEIR_CACHE/kernel-$name-$MACHINE_KERNEL_SUITE-$MACHINE_KERNEL_RECIPE
    shift 3
    if [[ -f $folder/vmlinuz ]]; then
        skip "the virtual machine's kernel ($name)"
    else
        step "kernel-$name" "The virtual machine's kernel of Debian $MACHINE_KERNEL_SUITE ($name): fetch ($description)" \
            fetch_kernel "$package" "$folder" "$@"
    fi
    echo "$folder/vmlinuz"
}

case ${1:-} in
drives) with_lock kernel fetch drives "about 40 MB" linux-image-cloud-amd64 ;;
rdma) with_lock kernel fetch rdma "about 110 MB" linux-image-amd64 "${RDMA_MODULES[@]}" ;;
*) fail "usage: machine_kernel.sh drives|rdma" ;;
esac
