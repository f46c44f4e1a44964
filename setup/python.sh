#!/usr/bin/env bash
# The Python that the package's tests run with, and its wheel.
#
#   python.sh interpreter   prints its path, after making the environment in the cache
#   python.sh wheel         builds the wheel (release) into target/wheels
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

requirements=$WEIR_REPO/client/python/requirements.txt
key=$(sha256sum "$requirements" | cut -c1-16)
environment=$WEIR_CACHE/python-$key

# Debian's own, which its PyTorch is for; what has no PyTorch has it missing in the tests, which say so.
make_environment() {
    rm -rf "$environment.new"
    /usr/bin/python3 -m venv --system-site-packages "$environment.new"
    "$environment.new/bin/python" -m pip install --quiet --require-hashes --no-deps --ignore-installed --only-binary :all: \
        -r "$requirements"
    # Its path is written into it, so it is made again at its place.
    rm -rf "$environment"
    mv "$environment.new" "$environment"
    /usr/bin/python3 -m venv --system-site-packages --upgrade "$environment"
}

prepare() {
    mkdir -p "$WEIR_CACHE"
    exec 8>"$WEIR_CACHE/python.lock"
    flock 8
    [[ -x $environment/bin/python && -f $environment/complete ]] || {
        step python "Python environment with NumPy, fsspec, pandas, xarray, zarr and maturin" make_environment >&2
        touch "$environment/complete"
    }
    exec 8>&-
}

case ${1:-} in
    interpreter)
        prepare
        echo "$environment/bin/python"
        ;;
    wheel)
        prepare
        cd "$WEIR_REPO"
        "$environment/bin/python" -m maturin build --release --locked --strip --manifest-path client/python/Cargo.toml --out target/wheels
        ;;
    *) fail "usage: python.sh interpreter|wheel" ;;
esac
