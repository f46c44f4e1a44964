#!/usr/bin/env bash
# Tests a store and an engine on emulated NVMe drives in a virtual machine: Debian's kernel, QEMU without hardware support,
# and programs (engine/store/examples/drive.rs, weir-engine, weir) that a shell script (init) leads through the test. Takes
# about a minute.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"

# Longest run; an idle machine needs a sixth of it.
readonly SECONDS_MAX=420
# Bytes of a drive: enough for a log and some pools. A format reads a drive up to 8 GiB as a whole, emulated ones slowly.
readonly DRIVE=256M

[[ $(uname -m) == x86_64 ]] || fail "the virtual machine's kernel is that of x86-64; this machine is $(uname -m)"
cd "$WEIR_REPO"
kernel=$(setup/machine_kernel.sh)
cargo build --locked --package weir-store --example drive
cargo build --locked --package weir-daemon --package weir-cli --bins
built=${CARGO_TARGET_DIR:-target}/debug
programs=("$built/examples/drive" "$built/weir-engine" "$built/weir")
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
for program in "${programs[@]}"; do
    strip -o "$root/bin/${program##*/}" "$program"
done
while read -r library; do
    install -D "$library" "$root$library"
done < <(ldd "${programs[@]}" | grep -oE '[[:space:]]/[^ ]+' | sort -u)
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"

log=$work/console
# The emulated CMPXCHG16B now and then leaves bits of RAX among the flags, of which the kernel's allocator dies.
readonly PROCESSOR=max,cx16=off
# On a busy machine the emulated timer comes late, which a kernel that checks it takes for a broken one.
options="console=ttyS0 quiet panic=-1 oops=panic rdinit=/init nvme.poll_queues=1 random.trust_cpu=on no_timer_check"
for attempt in 1 2 3; do
    status=0
    # Nothing that an earlier attempt wrote.
    drives=()
    for number in 0 1; do
        rm -f "$work/drive$number"
        truncate -s "$DRIVE" "$work/drive$number"
        drives+=(-drive "file=$work/drive$number,if=none,format=raw,cache=unsafe,id=drive$number"
            -device "nvme,serial=weir$number,drive=drive$number")
    done
    timeout "$SECONDS_MAX" qemu-system-x86_64 -accel tcg -cpu "$PROCESSOR" -smp 1 -m 768 \
        -nodefaults -no-reboot -display none -serial "file:$log" "${drives[@]}" \
        -kernel "$kernel" -initrd "$work/initramfs" -append "$options" || status=$?
    # Now and then the emulated processor loses its way, most often before anything of the test has run. No program of the
    # test can make the kernel panic, but for the end of init, which isn't one of these.
    if grep -q 'Kernel panic' "$log" && ! grep -q 'Attempted to kill init' "$log"; then
        say "the virtual machine's kernel panicked (attempt $attempt of 3)"
        tail -n 60 "$log" >&2
    elif grep -q '^nvme: booted' "$log"; then
        break
    else
        say "the virtual machine's kernel did not boot (attempt $attempt of 3)"
    fi
done
if ! grep -q '^nvme: passed' "$log"; then
    tail -n 60 "$log" >&2
    fail "the test in the virtual machine did not pass (QEMU's exit code $status)"
fi
grep -E '^(/dev/|drive |health|4 KiB|recovered|round|verified|transfers|engine)' "$log"
say "NVMe: passed in $SECONDS s"
