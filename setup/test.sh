#!/usr/bin/env bash
# Everything `make test` runs, cheapest first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=setup/steps.sh
source setup/steps.sh

say "Rust: units, properties, simulation, processes and mounts"
cargo build --locked --workspace --bins
# The binaries are current: tests that start them need not build them again.
WEIR_BUILT=1 cargo test --locked --workspace --no-fail-fast
say "NVMe: a store and an engine on emulated drives in a virtual machine"
e2e/nvme/run.sh
say "Verbs: fabric, RPC and an engine on soft RoCE in a virtual machine"
e2e/verbs/run.sh
say "Go: operator on a real API server, CSI driver with csi-sanity, chart"
KUBEBUILDER_ASSETS=$(setup/setup.sh assets)
export KUBEBUILDER_ASSETS
go test ./...
say "alert rules"
promtool test rules charts/weir/alerts/*_test.yaml
say "test: all passed"
