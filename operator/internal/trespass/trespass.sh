# A pod of a tenant runs this (trespass.go): it prints what engines answer, as DER numbers, for attempts to reach a container of another
# tenant. Environment: SECRET and SCRATCH are directories, POOL and CONTAINER UUIDs, OTHER_TENANT the number of the tenant that has them.
# shellcheck shell=bash
set -uo pipefail
answers=${ANSWERS:-/dev/termination-log}
cp -L "$SECRET"/* "$SCRATCH"/ || exit 1
cd "$SCRATCH" || exit 1
# The attach file of somebody who says that he is the other tenant.
sed -E "s/\"tenant\": *[0-9]+/\"tenant\": $OTHER_TENANT/" client.json >other.json
if cmp -s client.json other.json; then
    echo "client.json names no tenant" >"$answers"
    exit 1
fi

# ask ATTACH POOL: what comes of listing the container.
ask() {
    weir --json --timeout 10 --attach "$1" fs ls "$2" "$CONTAINER" / | sed -nE 's/.*"status":(-?[0-9]+)\}$/\1/p'
}

# A pool that nobody has: an engine that knows the tenant by its key says so. A pod that was just made may wait for its network.
nobodys=00000000-0000-0000-0000-000000000000
for _ in $(seq 12); do
    own=$(ask client.json "$nobodys")
    [[ $own != -1005 ]] || break
    sleep 5
done
printf 'own %s\nkey %s\nnumber %s\n' "$own" "$(ask client.json "$POOL")" "$(ask other.json "$POOL")" >"$answers"
