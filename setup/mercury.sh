#!/usr/bin/env bash
# Lints and tests what speaks Mercury, with the cargo feature, where pkg-config finds one.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$WEIR_REPO"

finds_mercury || fail "Mercury is not installed: pkg-config finds no 'mercury >= 2.4', and nothing was tested." \
    "Install it and set PKG_CONFIG_PATH (docs/how-to/mercury.md)."
version=$(pkg-config --modversion mercury)

# with_mercury SUBCOMMAND PACKAGE [ARGUMENT...]: that of cargo, for one package and with the feature.
with_mercury() {
    local subcommand=$1 package=$2
    shift 2
    cargo "$subcommand" --locked --package "$package" --features "$package/mercury" "$@"
}

say "fabric, RPC and mounts with Mercury $version"
for package in weir-fabric weir-rpc weir-probe weir-daemon weir-cli; do
    with_mercury clippy "$package" --all-targets -- -D warnings
done
for package in weir-fabric weir-rpc weir-probe weir-daemon; do
    with_mercury test "$package"
done
with_mercury test weir-cli --test mountd
say "fabric, RPC and mounts with Mercury $version: all passed"
