#!/usr/bin/env bash
# Makes a kind node image from Debian packages and binaries built from the Go module proxy, for machines without a
# container registry, and prints its name. The image stays in the Docker engine under a tag that is the hash of its
# recipe.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"
# shellcheck source=setup/docker_cli.sh
source "$WEIR_REPO/setup/docker_cli.sh"

here=$WEIR_REPO/e2e/cluster
binaries=(kubernetes coredns pause)

# recipe_hash: changes when anything that goes into the image does.
recipe_hash() {
    {
        for binary in "${binaries[@]}"; do
            basename "$("$here/binaries.sh" path "$binary")"
        done
        "$here/binaries.sh" path csi-provisioner
        "$here/binaries.sh" path csi-resizer
        echo "$KIND_VERSION $NODE_RECIPE $BASE_SUITE $BASE_RECIPE"
        find "$here/node" -type f -print0 | sort -z | xargs -0 cat
        cat "$here/node_image.sh"
    } | sha256sum | cut -c1-12
}

# lay_out CONTEXT: the build context of node/Dockerfile.
lay_out() {
    local context=$1 binary kind_module
    rm -rf "$context"
    mkdir -p "$context/bin"
    cp -r "$here/node/." "$context/"
    for binary in "${binaries[@]}"; do
        install -m 0755 "$("$here/binaries.sh" path "$binary")" "$context/bin/$binary"
    done
    # The node's entrypoint, units and containerd configuration come with the kind module that made our kind binary.
    kind_module=$(cd / && GOFLAGS='' go mod download -json "sigs.k8s.io/kind@$KIND_VERSION" | jq -r .Dir)
    cp -r "$kind_module/images/base/files" "$context/kind"
    chmod -R u+w "$context/kind"
    rm -rf "$context/kind/usr/local/bin/clean-install" "$context/kind/LICENSES" \
        "$context/kind/etc/systemd/system/containerd-fuse-overlayfs.service"
    chmod 0755 "$context/kind/usr/local/bin/entrypoint"
    printf '%s' "$KUBERNETES_VERSION" >"$context/version"
}

# docker_build TARGET TAG CONTEXT
docker_build() {
    DOCKER_BUILDKIT=1 "$(docker_cli)" build --target "$1" --tag "$2" "$3"
}

build_stages() {
    local context=$1 tag=$2 stage
    for stage in node components coredns pause; do
        docker_build "$stage" "weir-cluster/$stage:$tag" "$context"
    done
}

# name_components TAG: gives the component images the names by which kubeadm asks for them, and prints the names. kubeadm
# itself says which registry and tags it expects.
name_components() {
    local tag=$1 image stage kubeadm
    # kubeadm is the binary under that name.
    kubeadm=$(mktemp -d)
    ln -s "$("$here/binaries.sh" path kubernetes)" "$kubeadm/kubeadm"
    mapfile -t images < <("$kubeadm/kubeadm" config images list --kubernetes-version "$KUBERNETES_VERSION" 2>/dev/null)
    rm -r "$kubeadm"
    ((${#images[@]} >= 7)) || fail "kubeadm lists ${#images[@]} images, not the 7 that a cluster needs"
    # The containerd configuration of kind $KIND_VERSION names this one.
    images+=("${images[0]%/*}/pause:3.10" weir/pod-network:local)
    for image in "${images[@]}"; do
        case $image in
        */coredns:*) stage=coredns ;;
        */pause:*) stage=pause ;;
        *) stage=components ;;
        esac
        docker tag "weir-cluster/$stage:$tag" "$image"
        echo "$image"
    done
}

# preload TAG IMAGE...: puts the images into the containerd of the node image, packed: a node unpacks what it runs.
preload() {
    local tag=$1 container
    shift
    container=$(docker run --detach --privileged --entrypoint sleep "weir-cluster/node:$tag" infinity)
    # shellcheck disable=SC2064  # this container, whatever follows
    trap "docker rm --force --volumes '$container' >/dev/null" EXIT
    docker exec --detach "$container" containerd
    # Two minutes for a busy machine; containerd itself takes about one second.
    docker exec "$container" timeout 120 bash -c 'until ctr version >/dev/null 2>&1; do sleep 0.2; done'
    docker save "$@" | docker exec --interactive "$container" \
        ctr --namespace k8s.io images import --label io.cri-containerd.pinned=pinned --all-platforms --no-unpack --digests -
    docker exec "$container" pkill -x containerd
    docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' "$container" "$image_name"
}

make_image() {
    local tag=$1 context
    context=$WEIR_CACHE/cluster/context
    lay_out "$context"
    build_stages "$context" "$tag"
    mapfile -t names < <(name_components "$tag")
    ((${#names[@]} > 0)) || fail "no component image was named"
    # Not needed for a cluster, but put in once here they need not be loaded into every new one.
    mapfile -t -O "${#names[@]}" names < <("$here/sidecars.sh")
    preload "$tag" "${names[@]}"
    rm -rf "$context"
}

tag=$(recipe_hash)
image_name=weir-cluster/node-image:$KUBERNETES_VERSION-$tag
if ! docker image inspect "$image_name" >/dev/null 2>&1; then
    "$here/binaries.sh" build "${binaries[@]}"
    "$WEIR_REPO/images/base.sh"
    step node-image "node image: Kubernetes $KUBERNETES_VERSION on Debian, about 2 minutes" make_image "$tag"
fi
echo "$image_name"
