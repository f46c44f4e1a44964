#!/usr/bin/env bash
# Everything `make lint` checks, cheapest first. Fails at the first tool that finds something.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=setup/steps.sh
source setup/steps.sh

go_format() {
    local unformatted
    unformatted=$(git ls-files '*.go' | grep -v '\.pb\.go$' | xargs gofmt -l)
    [[ -z $unformatted ]] || { printf 'run make fmt; not formatted:\n%s\n' "$unformatted"; return 1; }
}

generated_files() {
    setup/generate.sh
    git diff --exit-code --stat -- charts engine/proto client/fuse/proto operator docs/reference
}

step lint-tidy "house rules" setup/tidy.sh
step lint-rooms "imports between rooms" setup/rooms.sh
step lint-links "links between pages" setup/links.sh
step lint-shell "shellcheck" bash -c 'git ls-files "*.sh" .ci/run | xargs shellcheck -x'
step lint-rustfmt "rustfmt" cargo fmt --all --check
step lint-gofmt "gofmt" go_format
step lint-deny "licences and sources of Rust dependencies" cargo deny --locked check bans licenses sources
step lint-clippy "clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
step lint-docs "pages of the Rust crates" \
    env RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --exclude weir-fuzz
step lint-go "golangci-lint" golangci-lint run ./...
step lint-generated "generated files match their source" generated_files
say "lint: clean"
