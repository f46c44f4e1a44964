#!/usr/bin/env bash
# Makes the images of the CSI sidecars in the Docker engine, unless they are there, and prints their names.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"
# shellcheck source=setup/docker_cli.sh
source "$WEIR_REPO/setup/docker_cli.sh"

here=$WEIR_REPO/e2e/cluster
# Label of an image that says which build of the binary is in it.
LABEL=dev.weir.binary

# build_image NAME BINARY IMAGE
build_image() {
    local sidecar=$1 binary=$2 image=$3 context
    context=$(mktemp -d)
    # shellcheck disable=SC2064  # this directory, whatever follows
    trap "rm -rf '$context'" EXIT
    cp "$binary" "$context/$sidecar"
    DOCKER_BUILDKIT=1 "$(docker_cli)" build --target "$sidecar" --label "$LABEL=$(basename "$binary")" --tag "$image" \
        --file "$here/sidecars/Dockerfile" "$context"
}

for entry in "csi-provisioner $CSI_PROVISIONER_VERSION" "csi-resizer $CSI_RESIZER_VERSION"; do
    read -r sidecar version <<<"$entry"
    image=weir/$sidecar:$version
    binary=$("$here/binaries.sh" path "$sidecar")
    # An image that is not there has no label, and is made as one of another build is.
    if ! found=$(docker image inspect --format "{{index .Config.Labels \"$LABEL\"}}" "$image" 2>/dev/null) ||
        [[ $found != "$(basename "$binary")" ]]; then
        "$here/binaries.sh" build "$sidecar"
        step "image-$sidecar" "image $image" build_image "$sidecar" "$binary" "$image"
    fi
    echo "$image"
done
