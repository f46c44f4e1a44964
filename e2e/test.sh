#!/usr/bin/env bash
# Tests on a real cluster: the story, then what must be refused or survived. The cluster stays unless CI is set.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
export PATH=$WEIR_CACHE/bin:$PATH
cd "$WEIR_REPO"
if [[ -n ${CI:-} ]]; then
    # What a run that was cut off left.
    e2e/clean.sh
    trap e2e/clean.sh EXIT
fi
go test -tags e2e -count 1 -timeout 60m -v ./e2e
