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

generate() {
	# shellcheck disable=SC2086  # the command holds its own arguments
	$controller_gen "$@"
}

generate object paths=./operator/api/... crd paths=./operator/api/... output:crd:dir=charts/weir/files/crds
# What the operator may do in the namespaces it serves, and what it has to see of the whole cluster and does with kinds that are
# in no namespace.
generate rbac:roleName=weir-operator \
	paths=./operator/internal/storagecluster paths=./operator/internal/pool paths=./operator/internal/container \
	output:rbac:dir=charts/weir/files/rbac/namespaced
generate rbac:roleName=weir-operator-nodes paths=./operator/internal/placement paths=./operator/internal/usage \
	paths=./operator/internal/tenant paths=./operator/internal/fabricdomain paths=./operator/internal/vniallocation \
	paths=./operator/internal/assignment \
	output:rbac:dir=charts/weir/files/rbac/cluster
# What the agent of a node's drives may do.
generate rbac:roleName=weir-drives paths=./operator/internal/inventory output:rbac:dir=charts/weir/files/rbac/drives
generate rbac:roleName=weir-drives-claims paths=./operator/internal/resourceclaim output:rbac:dir=charts/weir/files/rbac/claims
# What the agent of a node's fabric may do.
generate rbac:roleName=weir-fabric paths=./operator/internal/enforcement output:rbac:dir=charts/weir/files/rbac/fabric
go run ./operator/internal/crdreference charts/weir/files/crds/storage.weir.dev_storageclusters.yaml \
	charts/weir/files/crds/storage.weir.dev_pools.yaml charts/weir/files/crds/storage.weir.dev_containers.yaml \
	charts/weir/files/crds/storage.weir.dev_fabricdomains.yaml charts/weir/files/crds/storage.weir.dev_tenants.yaml \
	charts/weir/files/crds/storage.weir.dev_vniallocations.yaml charts/weir/files/crds/storage.weir.dev_nodedevices.yaml \
	>docs/reference/crds.md
