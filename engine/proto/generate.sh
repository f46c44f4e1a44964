#!/usr/bin/env bash
# Writes the Go code of every protocol in the repository. Needs protoc (Debian: protobuf-compiler); its plugins are built
# at the versions of setup/versions.env.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=setup/steps.sh
source setup/steps.sh

setup/tools.sh protoc-gen-go protoc-gen-go-grpc

# generate FOLDER FILE: imports of the file are relative to the folder.
generate() {
    PATH=$WEIR_CACHE/bin:$PATH protoc --proto_path="$1" \
        --go_out=. --go_opt=module=weir.dev/weir \
        --go-grpc_out=. --go-grpc_opt=module=weir.dev/weir \
        "$2"
}
generate engine/proto management/v1/management.proto
generate client/fuse/proto mount/v1/mount.proto
