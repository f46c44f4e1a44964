#!/usr/bin/env bash
# Runs the release that COMPAT_COMMIT (versions.env) pins against this one, both ways, under load: engines of one with clients of
# the other, and engines of both side by side while they are replaced one by one.
#
#   compat.sh            with the programs of this repository as `cargo build` makes them
#
# Each engine ends by SIGKILL and starts as a program of this release on the folder that the earlier one wrote. The load is
# a mount of each release, which write files, sync them, and read what the other one has written, and keys of `weir kv`.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$WEIR_REPO"

readonly ENGINES=3
# Files that each mount writes in a step, at least.
readonly FILES=40
earlier=$WEIR_CACHE/compat/$COMPAT_COMMIT
work=$WEIR_REPO/target/compat
declare -A weir=([earlier]=$earlier/target/debug/weir [present]=$WEIR_REPO/target/debug/weir)
export WEIR_DEV_DIR=$work/system
export WEIR_ATTACH=$WEIR_DEV_DIR/client.json
# The program that the supervisor starts: a link, so that an engine which starts again is of the other release.
export WEIR_ENGINE=$work/weir-engine
loads=()

build_earlier() {
    [[ ! -e $earlier/whole ]] || return 0
    rm -rf "$earlier"
    mkdir -p "$earlier"
    git archive "$COMPAT_COMMIT" | tar -x -C "$earlier"
    cd "$earlier"
    cargo build --locked --workspace --bins
    touch "$earlier/whole"
}

build_present() {
    cargo build --locked --workspace --bins
}

# use_engines RELEASE: engines that start from here on are of this release.
use_engines() {
    ln -sfn "$(dirname "${weir[$1]}")/weir-engine" "$WEIR_ENGINE"
}

# incarnation RANK: a number that each start of an engine has of its own; empty while the engine isn't joined.
incarnation() {
    "${weir[present]}" --json system query | python3 -c '
import json, sys
for member in json.load(sys.stdin)["response"]["members"]:
    if member["rank"] == int(sys.argv[1]) and member["state"] == "joined":
        print(member["incarnation"])' "$1"
}

# replace RANK: ends an engine, and waits until it has started again.
replace() {
    local before after deadline=$((SECONDS + 60))
    before=$(incarnation "$1")
    "${weir[present]}" dev kill "$1"
    until after=$(incarnation "$1") && [[ -n $after && $after != "$before" ]]; do
        ((SECONDS < deadline)) || fail "engine $1 isn't back after 60 s: see $WEIR_DEV_DIR"
        sleep 0.2
    done
}

mount_all() {
    local release
    for release in earlier present; do
        mkdir -p "$work/$release"
        "${weir[$release]}" mount tank home "$work/$release"
    done
}

system_up() {
    system_down
    mkdir -p "$work"
    use_engines earlier
    "${weir[earlier]}" dev up --detach --engines "$ENGINES" --targets 2 --size 1GiB
    mount_all
}

unmount_all() {
    local release
    for release in earlier present; do
        if mountpoint -q "$work/$release"; then
            "${weir[present]}" umount "$work/$release"
        fi
    done
}

system_down() {
    unmount_all
    # Before the first run and after a failed start there is no system to stop.
    "${weir[present]}" dev down --wipe >/dev/null 2>&1 || true
}

# write_files RELEASE STEP: files of 1 B to 2 MiB by the release's mount, each synced and noted with its checksum, until the step
# is at its end.
write_files() {
    local release=$1 folder=$work/$1/$1-$2 number=0 size
    mkdir "$folder"
    while ((number < FILES)) || [[ -e $work/goes-on ]]; do
        number=$((number + 1))
        size=$((1 + (number * 7919 * 64) % (2 * 1024 * 1024)))
        head -c "$size" /dev/urandom >"$work/$release.part"
        dd if="$work/$release.part" of="$folder/$number" bs=128k conv=fsync status=none
        (cd "$work" && printf '%s  %s\n' "$(sha256sum <"$release.part" | cut -d' ' -f1)" "$1-$2/$number") >>"$work/$release.sums"
        "${weir[$release]}" kv put tank home "$((number + 1000))" "$release-$2" "$size" >/dev/null
        [[ $("${weir[$release]}" kv get tank home "$((number + 1000))" "$release-$2") == "$size" ]] ||
            fail "$release release: key $release-$2 of object $((number + 1000)) isn't $size"
    done
}

# verify: each release's mount shows what both have written.
verify() {
    local release writer
    for release in earlier present; do
        for writer in earlier present; do
            (cd "$work/$release" && sha256sum --check --quiet "$work/$writer.sums") ||
                fail "the $release release reads something else than the $writer one wrote"
        done
        "${weir[$release]}" pool query tank
        "${weir[$release]}" container list tank
    done
}

load() {
    local release
    loads=()
    for release in earlier present; do
        write_files "$release" "$1" &
        loads+=($!)
    done
}

load_ended() {
    local load
    for load in "${loads[@]}"; do
        wait "$load" || fail "a load has failed"
    done
    verify
}

by_earlier_engines() {
    load 1
    load_ended
}

while_engines_are_replaced() {
    local rank
    touch "$work/goes-on"
    load 2
    use_engines present
    for rank in $(seq 0 $((ENGINES - 1))); do
        replace "$rank"
        sleep 2
    done
    rm "$work/goes-on"
    load_ended
}

by_present_engines() {
    load 3
    load_ended
}

remounted() {
    unmount_all
    mount_all
    verify
}

git cat-file -e "$COMPAT_COMMIT^{commit}" 2>/dev/null ||
    fail "commit $COMPAT_COMMIT isn't in this clone: fetch the whole history (git fetch --unshallow)"
trap system_down EXIT
with_lock compat step compat-earlier "programs of $COMPAT_COMMIT" build_earlier
step compat-present "programs of this tree" build_present
rm -f "$work"/*.sums "$work/goes-on"
step compat-up "engines of the earlier release, a mount of each" system_up
step compat-earlier-engines "load on engines of the earlier release" by_earlier_engines
step compat-replaced "load while engines become ones of this release" while_engines_are_replaced
step compat-present-engines "load on engines of this release" by_present_engines
step compat-remounted "all files again by new mounts" remounted
say "compat: $(cat "$work"/*.sums | wc -l) files and as many keys of both releases are what was written"
