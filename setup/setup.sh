#!/usr/bin/env bash
# Installs what a fresh Debian 12 with Go and Rust lacks to build, test and run Weir. Idempotent: what is there stays.
#
#   setup.sh build     what compiling and the unit tests need: packages, libfabric
#   setup.sh test      what all tests need: build, machine, a Kubernetes API server, Python with PyTorch, helm, csi-sanity, promtool,
#                      pjdfstest, fsx
#   setup.sh cluster   what the story and the images need: build, the Docker engine, kind, a node image, helm, prometheus
#   setup.sh lint      what the lints and generated files need: build, shellcheck, protoc, golangci-lint, controller-gen, cargo-deny
#   setup.sh bench     what the benchmarks need: build, RocksDB to measure beside
#   setup.sh machine   what virtual machines with emulated drives or soft RoCE need: build, QEMU, kernels
#   setup.sh all       all of the above but bench (the default)
#   setup.sh assets    prints the directory with etcd, kube-apiserver and kubectl (KUBEBUILDER_ASSETS), after making it
#
# What is built goes to ${XDG_CACHE_HOME:-~/.cache}/weir, keyed by version; removing that directory undoes it.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

setup=$WEIR_REPO/setup

require_toolchains() {
    local missing=() tool
    for tool in go cargo; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    ((${#missing[@]} == 0)) || fail "missing: ${missing[*]}. Install Go 1.26 and Rust 1.95 or newer, then try again"
}

setup_build() {
    "$setup/packages.sh" build
    "$setup/libfabric.sh" build
}

setup_assets() {
    "$setup/assets.sh"
}

setup_machine() {
    setup_build
    "$setup/packages.sh" machine
    "$setup/machine_kernel.sh" drives
    "$setup/machine_kernel.sh" rdma
}

setup_test() {
    setup_machine
    setup_assets
    "$setup/packages.sh" python
    "$setup/python.sh" interpreter
    "$setup/tools.sh" helm csi-sanity promtool pjdfstest fsx
}

setup_cluster() {
    "$setup/packages.sh" cluster
    setup_build
    "$WEIR_REPO/e2e/cluster/cluster.sh" prepare
    "$setup/tools.sh" helm prometheus
}

setup_lint() {
    # clippy compiles.
    setup_build
    "$setup/packages.sh" lint
    "$setup/tools.sh" golangci-lint controller-gen cargo-deny
}

setup_bench() {
    setup_build
    "$setup/packages.sh" bench
}

require_toolchains
began=$SECONDS
verbs=("$@")
((${#verbs[@]} > 0)) || verbs=(all)
[[ ${verbs[*]} != all ]] || verbs=(cluster test lint)
for verb in "${verbs[@]}"; do
    case $verb in
    # Its output is for another program.
    assets) setup_assets ;;
    build | test | cluster | lint | bench | machine) "setup_$verb" >/dev/null ;;
    *) fail "usage: setup.sh [all|build|test|cluster|lint|bench|machine|assets]..." ;;
    esac
done
say "set-up (${verbs[*]}) finished in $((SECONDS - began)) s; what it built is in $WEIR_CACHE"
