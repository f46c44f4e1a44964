#!/usr/bin/env bash
# Performs the main job and leaves the cluster running: see e2e/story.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
export PATH=$WEIR_CACHE/bin:$PATH
cd "$WEIR_REPO"
exec go run ./e2e/cmd/weir-story --repository "$WEIR_REPO"
