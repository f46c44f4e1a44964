#!/usr/bin/env bash
# Installs what a fresh Debian 12 with Go and Rust lacks to build, test and run Weir. Idempotent: what is there stays.
#
#   setup.sh all        everything below (the default)
#   setup.sh build      what compiling and the unit tests need: packages, libfabric
#   setup.sh assets     etcd, kube-apiserver and kubectl for the controller tests; prints their directory
#   setup.sh tools      helm, csi-sanity, promtool and prometheus
#   setup.sh cluster    the Docker engine, kind and the cluster's node image
#   setup.sh lint       shellcheck, golangci-lint, cargo-deny, kubeconform
#   setup.sh generate   controller-gen and the protocol compilers' plugins
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

setup_tools() {
    "$setup/tools.sh" helm csi-sanity promtool prometheus
}

setup_cluster() {
    "$setup/packages.sh" cluster
    "$WEIR_REPO/e2e/cluster/cluster.sh" prepare
}

setup_lint() {
    "$setup/packages.sh" lint
    "$setup/tools.sh" golangci-lint kubeconform cargo-deny
}

setup_generate() {
    "$setup/tools.sh" controller-gen protoc-gen-go protoc-gen-go-grpc
}

require_toolchains
began=$SECONDS
verbs=("$@")
((${#verbs[@]} > 0)) || verbs=(all)
[[ ${verbs[*]} != all ]] || verbs=(build cluster assets tools lint generate)
for verb in "${verbs[@]}"; do
    case $verb in
    build | assets | tools | cluster | lint | generate) "setup_$verb" ;;
    *) fail "usage: setup.sh [all|build|assets|tools|cluster|lint|generate]..." ;;
    esac
done
say "set-up (${verbs[*]}) finished in $((SECONDS - began)) s; what it built is in $WEIR_CACHE"
