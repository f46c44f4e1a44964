#!/usr/bin/env bash
# The three-node Kubernetes cluster of the story and the end-to-end tests.
#
#   cluster.sh prepare         builds or pulls all that a cluster needs
#   cluster.sh up              makes the cluster, unless it is there, and waits until it is ready
#   cluster.sh load IMAGE...   puts images of the Docker engine into every node
#   cluster.sh status          prints the nodes and the system's pods
#   cluster.sh down            removes the cluster
#
# The kubeconfig is written to $KUBECONFIG, or to target/kubeconfig. WEIR_REGISTRY=none makes it behave as on a machine
# without a container registry.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"

here=$WEIR_REPO/e2e/cluster
cluster=${WEIR_CLUSTER:-weir}
KUBECONFIG=$(realpath -m "${KUBECONFIG:-$WEIR_REPO/target/kubeconfig}")
export KUBECONFIG
export PATH=$WEIR_CACHE/bin:$PATH
# How long the control plane and the system's pods may take on a busy machine. Seconds.
READY_DEADLINE=600

kind_command() {
    "$("$here/binaries.sh" path kind)" "$@"
}

exists() {
    docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$cluster" 2>/dev/null | grep -q .
}

# published_image: whether kind's own node image is here or can be pulled.
published_image() {
    [[ ${WEIR_REGISTRY:-} != none ]] || return 1
    timeout 20 docker pull --quiet "$PUBLISHED_NODE_IMAGE" >/dev/null 2>&1
}

# node_image: prints the node image to use, after making sure that the Docker engine has it.
node_image() {
    if docker image inspect "$PUBLISHED_NODE_IMAGE" >/dev/null 2>&1 || published_image; then
        echo "$PUBLISHED_NODE_IMAGE"
    else
        "$here/node_image.sh"
    fi
}

prepare() {
    "$WEIR_REPO/setup/docker.sh" start
    # The base image keeps one core busy for half a minute, the binaries every core for some minutes.
    "$WEIR_REPO/images/base.sh" &
    "$here/binaries.sh" build kind kubernetes
    "$WEIR_REPO/setup/assets.sh" >/dev/null
    wait "$!"
    "$here/sidecars.sh" >/dev/null
    node_image
}

create() {
    # kind.yaml names files of the repository.
    cd "$WEIR_REPO"
    kind_command create cluster --name "$cluster" --config "$here/kind.yaml" --image "$1" --kubeconfig "$KUBECONFIG" \
        --wait "${READY_DEADLINE}s"
}

# settle: waits for what kind doesn't wait for.
settle() {
    kubectl wait --for=condition=Ready nodes --all --timeout="${READY_DEADLINE}s"
    kubectl --namespace kube-system wait --for=condition=Ready pods --all --timeout="${READY_DEADLINE}s"
}

# remove_ended: deletes a cluster of which a node has ended, also one that runs again. An engine that was killed leaves it
# so: the nodes come back with it, under other addresses, and kind does not wait for a control plane that it did not make.
remove_ended() {
    local nodes
    mapfile -t nodes < <(docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$cluster")
    ((${#nodes[@]} > 0)) || return 0
    # What never ended has the zero time here; what was never started is 'created'.
    if docker inspect --format '{{.State.Status}} {{.State.FinishedAt}}' "${nodes[@]}" |
        grep -qv '^running 0001-01-01T00:00:00Z$'; then
        step cluster-delete "cluster $cluster: delete, its nodes have ended since it was made" \
            kind_command delete cluster --name "$cluster" --kubeconfig "$KUBECONFIG"
    fi
}

up() {
    local image
    image=$(prepare | tail -n 1)
    mkdir -p "$(dirname "$KUBECONFIG")"
    remove_ended
    if exists; then
        skip "cluster $cluster"
        kind_command export kubeconfig --name "$cluster" --kubeconfig "$KUBECONFIG" --quiet
    else
        step cluster-create "cluster $cluster: create, 3 nodes" create "$image"
    fi
    mapfile -t sidecars < <("$here/sidecars.sh")
    step cluster-sidecars "cluster $cluster: load the CSI sidecars" load "${sidecars[@]}"
    step cluster-settle "cluster $cluster: wait for nodes, name server and pod network" settle
    say "kubeconfig: $KUBECONFIG"
}

# images_of NODE: 'NAME IDENTITY' of each image that the node's containerd has; the identity is the digest of the image's
# configuration, by which Docker knows it too.
images_of() {
    # shellcheck disable=SC2016  # for the node's shell
    docker exec "$1" bash -c '
        ctr --namespace k8s.io images list | while read -r name _ manifest _; do
            [[ $name == */*:* ]] || continue
            echo "$name $(ctr --namespace k8s.io content get "$manifest" | jq -r ".config.digest // empty")"
        done'
}

# missing_images IMAGE...: those of the images that some node lacks, or has another build of.
missing_images() {
    local image node images identity
    images=$(kind_command get nodes --name "$cluster" | while read -r node; do
        images_of "$node" </dev/null | sed "s|^|$node |"
    done)
    for image in "$@"; do
        identity=$(docker image inspect --format '{{.Id}}' "$image")
        awk -v name="$image" -v identity="$identity" '
            { nodes[$1] = 1; at = length($2) - length(name) }
            ($2 == name || (at > 0 && substr($2, at) == "/" name)) && $3 == identity { have[$1] = 1 }
            END { for (node in nodes) if (!(node in have)) exit 1 }' <<<"$images" || echo "$image"
    done
}

load() {
    local image missing
    for image in "$@"; do
        docker image inspect "$image" >/dev/null || fail "the Docker engine has no image $image: run 'images/build.sh'"
    done
    mapfile -t missing < <(missing_images "$@")
    ((${#missing[@]} > 0)) || return 0
    kind_command load docker-image --name "$cluster" "${missing[@]}"
}

down() {
    "$WEIR_REPO/setup/docker.sh" status >/dev/null 2>&1 || return 0
    if exists; then
        step cluster-delete "cluster $cluster: delete" kind_command delete cluster --name "$cluster" --kubeconfig "$KUBECONFIG"
    fi
}

verb=${1:-}
(($# == 0)) || shift
case $verb in
prepare) prepare >/dev/null ;;
up) with_lock cluster up ;;
down) with_lock cluster down ;;
load)
    (($# > 0)) || fail "usage: cluster.sh load IMAGE..."
    exists || fail "there is no cluster $cluster: run 'e2e/cluster/cluster.sh up'"
    step cluster-load "cluster $cluster: load $*" load "$@"
    ;;
status)
    exists || fail "there is no cluster $cluster: run 'e2e/cluster/cluster.sh up'"
    kubectl get nodes --output wide
    kubectl --namespace kube-system get pods --output wide
    ;;
*) fail "usage: cluster.sh prepare|up|down|load IMAGE...|status" ;;
esac
