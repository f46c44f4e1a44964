#!/usr/bin/env bash
# Makes sure that the Docker engine has the image that every other image starts from: pulled where a container registry
# is in reach, made from Debian's packages where there is none. Both answer to the same name, so every Dockerfile
# builds unchanged.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/steps.sh"
# shellcheck source=setup/debian_sources.sh
source "$WEIR_REPO/setup/debian_sources.sh"

# Packages beyond debootstrap's smallest set.
EXTRA_PACKAGES=ca-certificates
archive=$WEIR_CACHE/images/base-$BASE_SUITE-$BASE_RECIPE.tar

# make_archive: a root file system of $BASE_SUITE, pruned of what no container reads, as an archive in the cache.
make_archive() {
    local work mirror
    mkdir -p "$WEIR_CACHE/images"
    work=$(mktemp -d "$WEIR_CACHE/images/base.XXXXXX")
    # shellcheck disable=SC2064  # the directory's name now, not at the end
    trap "rm -rf '$work'" EXIT
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || fail "apt on this machine has no Debian source: run 'apt-get update', or add one, then try again"
    debootstrap --variant=minbase --include="$EXTRA_PACKAGES" "$BASE_SUITE" "$work/root" "$mirror"
    debian_sources "$BASE_SUITE" >"$work/root/etc/apt/sources.list"
    [[ -s $work/root/etc/apt/sources.list ]] ||
        echo "deb $mirror $BASE_SUITE main" >"$work/root/etc/apt/sources.list"
    prune "$work/root"
    tar -C "$work/root" --numeric-owner --exclude=./dev/* -cf "$work/base.tar" .
    mv "$work/base.tar" "$archive"
}

# prune ROOT: takes out what is there for people and for package installation, and keeps it out of later installs.
prune() {
    local root=$1
    cat >"$root/etc/dpkg/dpkg.cfg.d/slim" <<'CONF'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
CONF
    # Indexes that apt would make anew at its next run, 60 MB of them.
    cat >"$root/etc/apt/apt.conf.d/slim" <<'CONF'
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::Languages "none";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
CONF
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 0755 "$root/usr/sbin/policy-rc.d"
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* \
        "$root"/var/log/* "$root"/etc/machine-id "$root"/etc/hostname "$root"/etc/resolv.conf
    mkdir -p "$root/var/lib/apt/lists/partial" "$root/var/cache/apt/archives/partial"
}

# pull: whether the image came from a container registry.
pull() {
    [[ ${WEIR_REGISTRY:-} != none ]] && timeout 120 docker pull -q "$BASE_IMAGE" >/dev/null 2>&1
}

import_archive() {
    docker import --change 'CMD ["bash"]' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        "$archive" "$BASE_IMAGE"
}

make_base() {
    if docker image inspect "$BASE_IMAGE" >/dev/null 2>&1; then
        skip "base image $BASE_IMAGE"
        return
    fi
    if pull; then
        say "base image $BASE_IMAGE pulled"
        return
    fi
    [[ -f $archive ]] || step base-image "base image: no container registry in reach, making it from Debian's packages" make_archive
    step base-import "base image: import as $BASE_IMAGE" import_archive
}

with_lock base-image make_base
