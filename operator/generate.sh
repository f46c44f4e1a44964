#!/bin/sh
# Generates deep copies, CRDs and RBAC rules of the operator from the Go types and their markers.
# CI runs it and fails when the tree changes.
set -eu
cd "$(dirname "$0")/.."

CONTROLLER_GEN_VERSION=v0.23.0
if [ -n "${CONTROLLER_GEN:-}" ]; then
	controller_gen="$CONTROLLER_GEN"
else
	controller_gen="go run sigs.k8s.io/controller-tools/cmd/controller-gen@$CONTROLLER_GEN_VERSION"
fi

# shellcheck disable=SC2086  # the command holds its own arguments
$controller_gen object paths=./operator/api/... \
	crd paths=./operator/api/... output:crd:dir=charts/weir/files/crds
