#!/usr/bin/env bash
# Builds the binaries that the cluster and the controller tests need, from the Go module proxy, once into the cache.
#
#   binaries.sh build NAME...   builds those that are missing
#   binaries.sh path NAME       prints where one is, or will be
#
# Names: kubernetes (every component and etcd), coredns, csi-provisioner, csi-resizer, pause, kind.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"

here=$WEIR_REPO/e2e/cluster

# sources NAME: the files that decide what the binary is.
sources() {
    case $1 in
    kubernetes | coredns) echo "$here"/binaries/go.{mod,sum} "$here/binaries/$1"/*.go ;;
    csi-provisioner) echo "$here"/binaries/go.{mod,sum} ;;
    csi-resizer) echo "$here"/binaries/resizer/go.{mod,sum} ;;
    pause) echo "$here/node/pause.c" ;;
    kind) echo ;;
    *) fail "$1 is none of the cluster's binaries: kubernetes coredns csi-provisioner csi-resizer pause kind" ;;
    esac
}

# version NAME: what a person would call the binary's version.
version() {
    case $1 in
    kubernetes) echo "$KUBERNETES_VERSION" ;;
    kind) echo "$KIND_VERSION" ;;
    csi-provisioner) echo "$CSI_PROVISIONER_VERSION" ;;
    csi-resizer) echo "$CSI_RESIZER_VERSION" ;;
    *) echo local ;;
    esac
}

# path NAME: the binary's place in the cache, which changes with its version and its sources.
path() {
    local files key
    read -ra files <<<"$(sources "$1")"
    key=$(cat "${files[@]}" /dev/null | sha256sum)
    echo "$WEIR_CACHE/cluster/$1-$(version "$1")-${key:0:12}"
}

# go_build OUTPUT MODULE PACKAGE [LDFLAGS]: one static binary.
go_build() {
    local output=$1 module=$2 package=$3 ldflags=${4:-}
    cd "$module"
    CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags "-s -w $ldflags" -o "$output" "$package"
}

# kubernetes_version_flags: what makes the components report their version; kubeadm refuses to work without one.
kubernetes_version_flags() {
    local package minor=${KUBERNETES_VERSION#v1.}
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf -- ' -X %s.%s' "$package" "gitVersion=$KUBERNETES_VERSION" "$package" gitMajor=1 \
            "$package" "gitMinor=${minor%%.*}" "$package" gitTreeState=clean
    done
}

make_binary() {
    local name=$1 output=$2
    case $name in
    kubernetes) go_build "$output" "$here/binaries" ./kubernetes "$(kubernetes_version_flags)" ;;
    coredns) go_build "$output" "$here/binaries" ./coredns ;;
    csi-provisioner)
        go_build "$output" "$here/binaries" github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner \
            "-X main.version=$CSI_PROVISIONER_VERSION"
        ;;
    csi-resizer)
        go_build "$output" "$here/binaries/resizer" github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer \
            "-X main.version=$CSI_RESIZER_VERSION"
        ;;
    pause) gcc -O2 -static -s -Wall -Wextra "$here/node/pause.c" -o "$output" ;;
    kind)
        GOBIN=$output.d CGO_ENABLED=0 GOFLAGS='' go install -trimpath -ldflags '-s -w' "sigs.k8s.io/kind@$KIND_VERSION"
        mv "$output.d/kind" "$output"
        rmdir "$output.d"
        ;;
    esac
}

build() {
    local name=$1 target
    target=$(path "$name")
    if [[ -x $target ]]; then
        skip "$name $(version "$name")"
        return
    fi
    mkdir -p "$(dirname "$target")"
    step "binary-$name" "$name $(version "$name"): build" make_binary "$name" "$target.new"
    mv "$target.new" "$target"
}

verb=${1:-}
(($# == 0)) || shift
case $verb in
build)
    with_passing_go_cache
    for name in "$@"; do
        with_lock "binary-$name" build "$name"
    done
    ;;
path) path "${1:?usage: binaries.sh path NAME}" ;;
*) fail "usage: binaries.sh build NAME... | path NAME" ;;
esac
