#!/usr/bin/env bash
# Builds the project's images into the Docker engine, with binaries built on this machine.
#
#   images/build.sh [TARGET...]   engine, operator, csi, client; all of them by default
#
# Environment: WEIR_IMAGE_TAG (default dev); WEIR_IMAGE_BINARIES (prebuilt, the default, or source, which compiles
# inside the build and needs a container registry for the compilers' images); WEIR_IMAGE_PROFILE (release, the default,
# or dev, which takes the binaries that the tests use).
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
# shellcheck source=setup/docker_cli.sh
source "$WEIR_REPO/setup/docker_cli.sh"

tag=${WEIR_IMAGE_TAG:-dev}
from=${WEIR_IMAGE_BINARIES:-prebuilt}
profile=${WEIR_IMAGE_PROFILE:-release}
# Go programs print it as theirs; Rust programs have it from their package.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$WEIR_REPO/Cargo.toml")
bin=$WEIR_REPO/target/images/bin
targets=("$@")
((${#targets[@]} > 0)) || targets=(engine operator csi client)

rust_binaries() {
    cd "$WEIR_REPO"
    local packages=(--package weir-daemon --package weir-cli --package weir-fuse --package weir-intercept) folder=$profile binary
    if [[ $profile == dev ]]; then
        # As setup/test.sh builds them: another choice of packages has other features, and compiles all of it again.
        packages=(--workspace --bins --lib)
        folder=debug
    fi
    cargo build --profile "$profile" --locked "${packages[@]}"
    for binary in weir-engine weir weir-mountd libweir_direct.so; do
        strip -o "$bin/$binary" "${CARGO_TARGET_DIR:-target}/$folder/$binary"
    done
}

# The same compiler flags as the tests use, so that what they compiled is not compiled again.
go_binaries() {
    cd "$WEIR_REPO"
    CGO_ENABLED=0 go build -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$bin/" \
        ./operator/cmd/weir-operator ./operator/cmd/weir-drives ./operator/cmd/weir-fabric ./csi/cmd/weir-csi ./csi/cmd/weir-broker
}

# Each program says that it is of the version that it is built from.
check_versions() {
    local binary printed
    for binary in weir-engine weir weir-mountd weir-operator weir-drives weir-fabric weir-csi weir-broker; do
        printed=$("$bin/$binary" --version)
        [[ " $printed" == *" $version" ]] || fail "$binary --version prints '$printed' and is built from $version"
    done
}

# build_image TARGET CONTEXT
build_image() {
    DOCKER_BUILDKIT=1 "$(docker_cli)" build --target "$1" --build-arg "BINARIES=$from" --tag "weir/$1:$tag" \
        --file "$WEIR_REPO/Dockerfile" "$2"
}

"$WEIR_REPO/setup/docker.sh" start
"$WEIR_REPO/images/base.sh"
context=$WEIR_REPO
if [[ $from == prebuilt ]]; then
    mkdir -p "$bin"
    step binaries-rust "binaries: engine, command line and mount daemon ($profile)" rust_binaries
    step binaries-go "binaries: operator and CSI driver" go_binaries
    check_versions
    # Nothing but the binaries goes into the build, whatever target/ is a link to.
    context=$(mktemp -d)
    trap 'rm -rf "$context"' EXIT
    mkdir -p "$context/target/images"
    cp -r "$bin" "$context/target/images/bin"
fi
for target in "${targets[@]}"; do
    step "image-$target" "image weir/$target:$tag" build_image "$target" "$context"
done
