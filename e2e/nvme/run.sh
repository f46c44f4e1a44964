#!/usr/bin/env bash
# Tests a store on emulated NVMe drives in a virtual machine: Debian's kernel, QEMU without hardware support, and one
# program (engine/store/examples/drive.rs) that a shell script (init) leads through the test. Takes under a minute.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"

# Longest run; an idle machine needs a sixth of it.
readonly SECONDS_MAX=300
# Bytes of a drive; a store's format reads all of it first.
readonly DRIVE=256M

[[ $(uname -m) == x86_64 ]] || fail "the virtual machine's kernel is that of x86-64; this machine is $(uname -m)"
cd "$WEIR_REPO"
kernel=$(setup/machine_kernel.sh)
cargo build --locked --package weir-store --example drive
program=${CARGO_TARGET_DIR:-target}/debug/examples/drive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A root file system in memory: a shell, the program and the libraries that it is linked to.
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp}
cp /bin/busybox "$root/bin/"
for applet in $("$root/bin/busybox" --list); do
    [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
done
install -m 0755 e2e/nvme/init "$root/init"
strip -o "$root/bin/drive" "$program"
while read -r library; do
    install -D "$library" "$root$library"
done < <(ldd "$program" | grep -oE '/[^ ]+')
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"

drives=()
for number in 0 1; do
    truncate -s "$DRIVE" "$work/drive$number"
    drives+=(-drive "file=$work/drive$number,if=none,format=raw,cache=unsafe,id=drive$number"
        -device "nvme,serial=weir$number,drive=drive$number")
done
log=$work/console
status=0
timeout "$SECONDS_MAX" qemu-system-x86_64 -accel tcg -cpu max -smp 1 -m 768 -nodefaults -no-reboot -display none \
    -kernel "$kernel" -initrd "$work/initramfs" \
    -append "console=ttyS0 quiet panic=-1 rdinit=/init nvme.poll_queues=1 random.trust_cpu=on" \
    -serial "file:$log" "${drives[@]}" || status=$?
if ! grep -q '^nvme: passed' "$log"; then
    tail -n 60 "$log" >&2
    fail "the test in the virtual machine did not pass (QEMU's exit code $status)"
fi
grep -E '^(/dev/|drive |health|4 KiB|recovered|round|verified|transfers)' "$log"
say "NVMe: passed in $SECONDS s"
