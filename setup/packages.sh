#!/usr/bin/env bash
# Installs the Debian packages that a part of the project needs, and only those that are missing.
#
#   packages.sh build|cluster|lint|bench|machine|consumers|python
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# Compiling and unit tests: a C tool chain (libfabric, C test programs), clang for the C ABI's second compiler, and
# fusermount3 for the mount daemon's tests; musl for programs with another C library; ip, which the tests of the fabric agent make networks with; autotools and dpkg-dev for libfabric's source, and what its verbs are built on.
build=(build-essential pkg-config clang fuse3 musl-tools iproute2 autoconf automake libtool dpkg-dev libibverbs-dev librdmacm-dev ca-certificates
    git jq)
# Container engine and what a node image is made of.
cluster=(docker.io containerd runc iptables debootstrap ca-certificates jq openssl libcap2-bin procps)
# Checking the scripts, and generating the protocols' Go code.
lint=(shellcheck protobuf-compiler)
# Measuring beside RocksDB: the library, and libclang for its binding.
bench=(librocksdb-dev libclang-dev)
# A virtual machine with emulated drives or soft RoCE, and what runs in it.
machine=(qemu-system-x86 busybox-static cpio xz-utils iproute2 ibverbs-providers librdmacm1)
# Programs that are built with the client's libraries, from Debian's sources, and run on several ranks.
consumers=(mpich libmpich-dev uuid-dev)
# The interpreter that the Python package is tested with, and PyTorch without accelerators.
python=(python3 python3-venv python3-torch)

# missing PACKAGE...: those of the packages that are not installed, one a line.
missing() {
    local package
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 update
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

case ${1:-} in
build) wanted=("${build[@]}") ;;
cluster) wanted=("${cluster[@]}") ;;
lint) wanted=("${lint[@]}") ;;
bench) wanted=("${bench[@]}") ;;
machine) wanted=("${machine[@]}") ;;
consumers) wanted=("${consumers[@]}") ;;
python) wanted=("${python[@]}") ;;
*) fail "usage: packages.sh build|cluster|lint|bench|machine|consumers|python" ;;
esac

mapfile -t absent < <(missing "${wanted[@]}")
if ((${#absent[@]} == 0)); then
    skip "Debian packages for $1"
    exit 0
fi
command -v apt-get >/dev/null || fail "this machine has no apt: install the equivalents of ${absent[*]} by hand"
((EUID == 0)) || fail "installing packages needs root: run 'sudo apt-get install ${absent[*]}', then try again"
step "packages-$1" "Debian packages for $1 (${absent[*]})" install_packages "${absent[@]}"
