# A virtual machine without hardware support that boots into a shell script, for tests that need a kernel of their own. Sourced,
# with setup/steps.sh before it.
# shellcheck shell=bash

# The emulated CMPXCHG16B now and then leaves bits of RAX among the flags, of which the kernel's allocator dies.
readonly MACHINE_PROCESSOR=max,cx16=off
# On a busy machine the emulated timer comes late, which a kernel that checks it takes for a broken one.
readonly MACHINE_OPTIONS="console=ttyS0 quiet panic=-1 oops=panic rdinit=/init random.trust_cpu=on no_timer_check"

# machine_root FOLDER INIT PROGRAM...: makes a root file system: a shell, the script that leads through the test, and the
# programs, which it has by their names alone, without what debuggers read.
machine_root() {
    local root=$1 init=$2 applet program
    shift 2
    mkdir -p "$root"/{bin,proc,sys,dev,tmp}
    cp /bin/busybox "$root/bin/"
    for applet in $("$root/bin/busybox" --list); do
        [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
    done
    install -m 0755 "$init" "$root/init"
    for program in "$@"; do
        strip -o "$root/bin/${program##*/}" "$program"
    done
    machine_libraries "$root" "$@"
}

# machine_libraries FOLDER FILE...: puts the libraries that programs or libraries are linked to into a root file system.
machine_libraries() {
    local root=$1 library
    shift
    while read -r library; do
        install -D "$library" "$root$library"
    done < <(ldd "$@" | grep -oE '[[:space:]]/[^ ]+' | sort -u)
}

# machine_pack FOLDER FILE: packs a root file system.
machine_pack() {
    (cd "$1" && find . | cpio --quiet -o -H newc | gzip -1) >"$2"
}

# machine_run NAME LOG SECONDS KERNEL ROOT OPTIONS [ARGUMENT...]: boots the machine with more options for the kernel and more
# arguments for QEMU, to which the function `machine_attempt` adds in the array `machine_devices` at each attempt. Fails unless
# the script has said 'NAME: passed'. The script says 'NAME: booted' first.
machine_run() {
    local name=$1 log=$2 seconds=$3 kernel=$4 root=$5 options=$6 attempt status
    shift 6
    for attempt in 1 2 3; do
        status=0
        machine_devices=()
        machine_attempt
        timeout "$seconds" qemu-system-x86_64 -accel tcg -cpu "$MACHINE_PROCESSOR" \
            -nodefaults -no-reboot -display none -serial "file:$log" \
            -kernel "$kernel" -initrd "$root" -append "$MACHINE_OPTIONS $options" "$@" "${machine_devices[@]}" || status=$?
        # Now and then the emulated processor loses its way, most often before anything of the test has run. No program of the
        # test can make the kernel panic, but for the end of init, which isn't one of these.
        if grep -q 'Kernel panic' "$log" && ! grep -q 'Attempted to kill init' "$log"; then
            say "the virtual machine's kernel panicked (attempt $attempt of 3)"
            tail -n 60 "$log" >&2
        elif grep -q "^$name: booted" "$log"; then
            break
        else
            say "the virtual machine's kernel did not boot (attempt $attempt of 3)"
        fi
    done
    if ! grep -q "^$name: passed" "$log"; then
        tail -n 60 "$log" >&2
        fail "the test in the virtual machine did not pass (QEMU's exit code $status)"
    fi
}
