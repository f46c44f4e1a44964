#!/usr/bin/env bash
# Builds the image weir/prometheus:dev from the Prometheus binary that set-up made.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$(readlink -f "$WEIR_CACHE/bin/prometheus")" "$context/prometheus"
cp -r "$WEIR_REPO/e2e/prometheus/consoles" "$context/consoles"
step image-prometheus "image weir/prometheus:dev" \
    docker build --quiet --tag weir/prometheus:dev --file "$WEIR_REPO/e2e/prometheus/Dockerfile" "$context"
