#!/usr/bin/env bash
# Inside a crate, imports go one way: setup/rooms.txt has the order of its rooms, lowest first. Prints each import against the
# order as file:line, and each room that is not in the order, that is nowhere, or that doesn't say what it is for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly ORDERS=setup/rooms.txt
breaches=0

breach() {
    printf '%s\n' "$*" >&2
    breaches=$((breaches + 1))
}

# check_rooms SOURCE ROOMS...: each room is there, and each folder says in the head of its mod.rs what it is for.
check_rooms() {
    local source=$1 room
    shift
    for room in "$@"; do
        if [[ ! -e $source/$room.rs && ! -d $source/$room ]]; then
            breach "$ORDERS: $source has no room $room"
        elif [[ -d $source/$room && ! -e $source/$room.rs ]] && ! head -n 1 "$source/$room/mod.rs" | grep -q '^//! '; then
            breach "$source/$room/mod.rs:1: say what the room is for, what it may call and what calls it"
        fi
    done
}

while IFS=: read -r source order; do
    [[ -n $source && $source != \#* ]] || continue
    read -ra rooms <<<"$order"
    check_rooms "$source" "${rooms[@]}"
    # The root first: it says which names are from which room.
    mapfile -t files < <(git ls-files -- "$source/lib.rs" "$source/main.rs" && git ls-files -- "$source/*.rs" ":!$source/lib.rs" ":!$source/main.rs")
    awk -v source="$source" -v order="$order" -f setup/rooms.awk "${files[@]}" >&2 || breaches=$((breaches + 1))
done <"$ORDERS"
if ((breaches > 0)); then
    printf 'imports against the order of rooms; move what both need to a lower room, or change %s\n' "$ORDERS" >&2
    exit 1
fi
