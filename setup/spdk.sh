#!/usr/bin/env bash
# Lints and tests what drives devices by SPDK, with the cargo feature, where pkg-config finds one. The tests use SPDK's
# devices in memory, without huge pages: any machine will do.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$WEIR_REPO"

# SPDK's pkg-config files tell the versions of its libraries; that of SPDK is in its headers alone.
remedy="Install SPDK 23.05 or newer and set PKG_CONFIG_PATH (docs/reference/engine-config.md, Devices)."
flags=$(pkg-config --cflags-only-I spdk_bdev 2>/dev/null) ||
    fail "SPDK is not installed: pkg-config finds no 'spdk_bdev', and nothing was tested. $remedy"
# number NAME: that of the version's parts.
number() {
    # shellcheck disable=SC2086 # Each of the flags is a word.
    printf '#include "spdk/version.h"\nSPDK_VERSION_%s\n' "$1" | ${CC:-cc} $flags -E -P - | tail -n 1
}
version=$(printf '%s.%02d' "$(number MAJOR)" "$(number MINOR)")
((${version/./} >= 2305)) || fail "SPDK $version is too old, and nothing was tested. $remedy"

say "media and engines with SPDK $version"
for package in weir-media weir-daemon; do
    cargo clippy --locked --package "$package" --features "$package/spdk" --all-targets -- -D warnings
done
for package in weir-media weir-daemon; do
    cargo test --locked --package "$package" --features "$package/spdk"
done
say "media and engines with SPDK $version: all passed"
