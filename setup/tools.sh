#!/usr/bin/env bash
# Builds pinned tools into the cache, keyed by version, and links them into the cache's bin directory.
#
#   tools.sh NAME...   builds those that are missing
#   tools.sh list      prints the names and versions
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# Name, version, and how it is built: 'go PACKAGE' installs a package of that version, 'prometheus PACKAGE' builds one of
# the module in setup/prometheus, 'cargo CRATE' installs a crate with its lock file.
tools=(
    "helm $HELM_VERSION go helm.sh/helm/v3/cmd/helm"
    "csi-sanity $CSI_SANITY_VERSION go github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
    "promtool $PROMETHEUS_VERSION prometheus github.com/prometheus/prometheus/cmd/promtool"
    "prometheus $PROMETHEUS_VERSION prometheus github.com/prometheus/prometheus/cmd/prometheus"
    "golangci-lint $GOLANGCI_LINT_VERSION go github.com/golangci/golangci-lint/v2/cmd/golangci-lint"
    "controller-gen $CONTROLLER_GEN_VERSION go sigs.k8s.io/controller-tools/cmd/controller-gen"
    "cargo-deny $CARGO_DENY_VERSION cargo cargo-deny"
    "pjdfstest $PJDFSTEST_VERSION cargo pjdfstest"
    "fsx $FSX_VERSION cargo fsx"
)

# make_tool DIRECTORY VERSION KIND PACKAGE: builds the binary into the directory.
make_tool() {
    local directory=$1 version=$2 kind=$3 package=$4
    mkdir -p "$directory"
    case $kind in
    go)
        GOBIN=$directory CGO_ENABLED=0 GOFLAGS='' go install -trimpath -ldflags '-s -w' "$package@$version"
        ;;
    prometheus)
        # Of the many service discoveries only those that the tests use, and no web pages.
        cd "$WEIR_REPO/setup/prometheus"
        CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags '-s -w' \
            -tags remove_all_sd,enable_kubernetes_sd -o "$directory/" "$package"
        ;;
    cargo)
        # Unoptimised: what waits for files and mounts takes as long either way, and compiles in half the time.
        CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version "$version" --root "$directory/root" \
            --target-dir "$directory/target" "$package"
        mv "$directory/root/bin/$package" "$directory/"
        rm -rf "$directory/root" "$directory/target"
        ;;
    esac
}

# tool NAME: builds it unless its version is in the cache.
tool() {
    local name=$1 entry fields directory
    for entry in "${tools[@]}"; do
        read -ra fields <<<"$entry"
        [[ ${fields[0]} == "$name" ]] || continue
        directory=$WEIR_CACHE/tools/$name-${fields[1]}
        if [[ -x $directory/$name ]]; then
            skip "$name ${fields[1]}"
        else
            rm -rf "$directory.new"
            step "tool-$name" "$name ${fields[1]}: build" make_tool "$directory.new" "${fields[@]:1}"
            rm -rf "$directory"
            mv "$directory.new" "$directory"
        fi
        mkdir -p "$WEIR_CACHE/bin"
        ln -sfn "$directory/$name" "$WEIR_CACHE/bin/$name"
        return
    done
    fail "no tool is called $name: 'setup/tools.sh list' prints the names"
}

(($# > 0)) || fail "usage: tools.sh NAME... | list"
if [[ $1 == list ]]; then
    printf '%s\n' "${tools[@]}" | cut -d' ' -f1,2
    exit 0
fi
with_passing_go_cache
for name in "$@"; do
    with_lock "tool-$name" tool "$name"
done
