#!/usr/bin/env bash
# Writes the Go code of every protocol in the repository. Needs protoc (Debian: protobuf-compiler); its plugins are
# installed into the cache at the versions pinned here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly PROTOC_GEN_GO=v1.36.12
readonly PROTOC_GEN_GO_GRPC=v1.6.2

bin=${XDG_CACHE_HOME:-$HOME/.cache}/weir/tools/protoc-gen-go-$PROTOC_GEN_GO-$PROTOC_GEN_GO_GRPC
if [[ ! -x $bin/protoc-gen-go || ! -x $bin/protoc-gen-go-grpc ]]; then
    mkdir -p "$bin"
    GOBIN=$bin go install "google.golang.org/protobuf/cmd/protoc-gen-go@$PROTOC_GEN_GO"
    GOBIN=$bin go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$PROTOC_GEN_GO_GRPC"
fi

# generate FOLDER FILE: imports of the file are relative to the folder.
generate() {
    PATH=$bin:$PATH protoc --proto_path="$1" \
        --go_out=. --go_opt=module=weir.dev/weir \
        --go-grpc_out=. --go-grpc_opt=module=weir.dev/weir \
        "$2"
}
generate engine/proto management/v1/management.proto
generate client/fuse/proto mount/v1/mount.proto
