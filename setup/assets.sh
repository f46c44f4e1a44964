#!/usr/bin/env bash
# Lays out what the controller tests start (the directory that KUBEBUILDER_ASSETS names) and puts kubectl and kind into
# the cache's bin directory. Prints the assets directory.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

binaries=$WEIR_REPO/e2e/cluster/binaries.sh
"$binaries" build kubernetes kind
kubernetes=$("$binaries" path kubernetes)
assets=$WEIR_CACHE/assets/$(basename "$kubernetes")

mkdir -p "$assets" "$WEIR_CACHE/bin"
for component in etcd kube-apiserver kubectl; do
    ln -sfn "$kubernetes" "$assets/$component"
done
ln -sfn "$kubernetes" "$WEIR_CACHE/bin/kubectl"
ln -sfn "$("$binaries" path kind)" "$WEIR_CACHE/bin/kind"
echo "$assets"
