#!/usr/bin/env bash
# Runs the tests that `make test` runs, cheapest first.
#
#   test.sh              all of them
#   test.sh crate NAME   those of one crate (store, fuse, ...) or of one folder of Go packages (operator, csi, charts)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=setup/steps.sh
source setup/steps.sh

test_rust() {
    say "Rust: units, properties, simulation, processes and mounts"
    cargo build --locked --workspace --bins
    setup/test_programs.sh
}

test_go() {
    KUBEBUILDER_ASSETS=$(setup/setup.sh assets)
    export KUBEBUILDER_ASSETS
    go test "$@"
}

test_rest() {
    say "NVMe: a store and an engine on emulated drives in a virtual machine"
    e2e/nvme/run.sh
    say "Verbs: fabric, RPC and an engine on soft RoCE in a virtual machine"
    e2e/verbs/run.sh
    say "Go: operator on a real API server, CSI driver with csi-sanity, chart"
    test_go ./...
    say "alert rules"
    promtool test rules charts/weir/alerts/*_test.yaml
}

# test_crate NAME: what a change of one crate or of one folder of Go packages needs.
test_crate() {
    local manifest
    manifest=$(git ls-files "engine/$1/Cargo.toml" "client/$1/Cargo.toml")
    if [[ -n $manifest ]]; then
        cargo build --locked --workspace --bins
        WEIR_BUILT=1 cargo test --locked --no-fail-fast --manifest-path "$manifest"
    elif [[ -n $(git ls-files "$1/*.go") ]]; then
        test_go "./$1/..."
    else
        fail "no crate engine/$1 or client/$1, and no Go packages in $1"
    fi
}

case ${1:-all} in
    all)
        test_rust
        test_rest
        ;;
    crate) test_crate "${2:?which crate: test.sh crate NAME}" ;;
    *) fail "what to test is all, or crate NAME, not $1" ;;
esac
say "test: all passed"
