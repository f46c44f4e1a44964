#!/usr/bin/env bash
# Writes the Go code of every protocol in the repository. Needs protoc (Debian: protobuf-compiler); the plugins are
# installed at the versions pinned here. With --check it fails when the committed code differs from what protoc writes.
set -euo pipefail

readonly PROTOC_GEN_GO=v1.36.12
readonly PROTOC_GEN_GO_GRPC=v1.6.2
readonly MODULE=weir.dev/weir

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

bin=${XDG_CACHE_HOME:-$HOME/.cache}/weir/protoc-gen/$PROTOC_GEN_GO-$PROTOC_GEN_GO_GRPC
if [[ ! -x $bin/protoc-gen-go || ! -x $bin/protoc-gen-go-grpc ]]; then
  mkdir -p "$bin"
  GOBIN=$bin go install "google.golang.org/protobuf/cmd/protoc-gen-go@$PROTOC_GEN_GO"
  GOBIN=$bin go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$PROTOC_GEN_GO_GRPC"
fi

out=$root
if [[ ${1:-} == --check ]]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi

# Each protocol with the folder that import paths inside it are relative to.
protocols=(
  "engine/proto management/v1/management.proto"
  "client/fuse/proto mount/v1/mount.proto"
)
for entry in "${protocols[@]}"; do
  read -r folder file <<<"$entry"
  [[ -f $folder/$file ]] || continue
  PATH=$bin:$PATH protoc --proto_path="$folder" \
    --go_out="$out" --go_opt=module="$MODULE" \
    --go-grpc_out="$out" --go-grpc_opt=module="$MODULE" \
    "$file"
  if [[ $out != "$root" ]]; then
    for generated in "$out/$folder/${file%.proto}"*.pb.go; do
      diff -u "${generated#"$out"/}" "$generated" ||
        { echo "${generated#"$out"/} is stale: run engine/proto/generate.sh" >&2; exit 1; }
    done
  fi
done
