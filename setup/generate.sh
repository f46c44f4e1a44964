#!/usr/bin/env bash
# Generates everything that is generated and committed; `make lint` checks that nothing differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
engine/proto/generate.sh
operator/generate.sh
