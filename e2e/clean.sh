#!/usr/bin/env bash
# Removes what `make run`, `make e2e` and `make dev` started: the cluster, the development system and its mounts, and the
# Docker engine if set-up started it.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
cd "$WEIR_REPO"
e2e/cluster/cluster.sh down
if [[ -x target/release/weir ]]; then
    found=0
    target/release/weir dev status >/dev/null 2>&1 || found=$?
    # Only 3 says that there is nothing: what a supervisor that died has left is ended, too.
    ((found == 3)) || target/release/weir dev down
fi
setup/docker.sh stop
