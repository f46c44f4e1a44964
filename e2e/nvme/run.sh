#!/usr/bin/env bash
# Tests a store and an engine on emulated NVMe drives in a virtual machine: Debian's kernel, QEMU without hardware support,
# and programs (engine/store/examples/drive.rs, weir-engine, weir, weir-drives) that a shell script (init) leads through the test. Takes
# about a minute.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"
# shellcheck source=e2e/machine.sh
source "$WEIR_REPO/e2e/machine.sh"

# Longest run; an idle machine needs a sixth of it.
readonly SECONDS_MAX=420
# Bytes of a drive: enough for a log and some pools. A format reads a drive up to 8 GiB as a whole, emulated ones slowly.
readonly DRIVE=256M

[[ $(uname -m) == x86_64 ]] || fail "the virtual machine's kernel is that of x86-64; this machine is $(uname -m)"
cd "$WEIR_REPO"
kernel=$(setup/machine_kernel.sh drives)
# With the features of the whole workspace, as tests have it: nothing is compiled a second time.
cargo build --locked --workspace --bins --example drive
built=${CARGO_TARGET_DIR:-target}/debug
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CGO_ENABLED=0 go build -buildvcs=false -ldflags '-s -w' -o "$work/weir-drives" ./operator/cmd/weir-drives
machine_root "$work/root" e2e/nvme/init "$built/examples/drive" "$built/weir-engine" "$built/weir" "$work/weir-drives"
machine_pack "$work/root" "$work/initramfs"

# machine_attempt: drives with nothing on them that an earlier attempt wrote.
machine_attempt() {
    local number
    for number in 0 1; do
        rm -f "$work/drive$number"
        truncate -s "$DRIVE" "$work/drive$number"
        machine_devices+=(-drive "file=$work/drive$number,if=none,format=raw,cache=unsafe,id=drive$number"
            -device "nvme,serial=weir$number,drive=drive$number")
    done
}

machine_run nvme "$work/console" "$SECONDS_MAX" "$kernel" "$work/initramfs" nvme.poll_queues=1 \
    -smp 1 -m 768
grep -E '^(/dev/|drive |health|4 KiB|recovered|round|verified|transfers|engine)' "$work/console"
say "NVMe: passed in $SECONDS s"
