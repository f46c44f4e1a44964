#!/usr/bin/env bash
# Tests the verbs provider on soft RoCE in a virtual machine: Debian's kernel, QEMU without hardware support, and programs (the
# tests of fabric and RPC, weir-engine, weir) that a shell script (init) leads through the test.
#
#   run.sh            what is tested on every change, about three minutes
#   run.sh all        all tests that other providers run
#   run.sh 'TEST...'  these tests alone, each a program and its arguments: run.sh 'memory_access forged' 'processes bulk'
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"
# shellcheck source=e2e/machine.sh
source "$WEIR_REPO/e2e/machine.sh"

# Longest run; an idle machine needs a quarter of it.
readonly SECONDS_MAX=900

# Programs with tests that run on every provider that `WEIR_TEST_PROVIDERS` names.
readonly FABRIC=(abilities memory_access registrations application_memory)
readonly RPC=(processes vandals rpc)
# All of those tests.
readonly ALL=("${FABRIC[@]}" processes vandals 'rpc threads:: standard:: withdrawal_real::')

# Paths of the test programs, after building them.
test_programs() {
    local arguments=() name
    for name in "${FABRIC[@]}" "${RPC[@]}"; do
        arguments+=(--test "$name")
    done
    # With the features of the whole workspace, as other tests have it: nothing is compiled a second time.
    cargo test --locked --no-run --workspace "${arguments[@]}" --message-format json |
        jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable) |
            select(.manifest_path | test("engine/(fabric|rpc)/")) | .executable'
}

[[ $(uname -m) == x86_64 ]] || fail "the virtual machine's kernel is that of x86-64; this machine is $(uname -m)"
cd "$WEIR_REPO"
kernel=$(setup/machine_kernel.sh rdma)
cargo build --locked --workspace --bins
built=${CARGO_TARGET_DIR:-target}/debug
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$work/tests"
while read -r program; do
    name=${program##*/}
    cp "$program" "$work/tests/${name%-*}"
done < <(test_programs)
machine_root "$root" e2e/verbs/init "$built/weir-engine" "$built/weir" "$work"/tests/* "$(command -v rdma)"
cp -r "${kernel%/*}/modules" "$root/modules"
# What the verbs provider loads, and what that loads for soft RoCE.
libraries=$(/sbin/ldconfig -p | awk '$1 == "libibverbs.so.1" && !found++ { sub("/[^/]*$", "", $NF); print $NF }')
drivers=$(dirname "$(realpath "$libraries"/libibverbs/librxe-*.so)")
for library in "$libraries"/{libibverbs,librdmacm}.so.1 "$drivers"/librxe-*.so; do
    install -D "$library" "$root$library"
    machine_libraries "$root" "$library"
done
install -D -m 0644 /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/rxe.driver"
# The provider resolves "localhost".
echo "127.0.0.1 localhost" >"$root/etc/hosts"
case ${1:-} in
'') cp e2e/verbs/tests "$root/tests" ;;
all) printf '%s\n' "${ALL[@]}" >"$root/tests" ;;
*) printf '%s\n' "$@" >"$root/tests" ;;
esac
machine_pack "$root" "$work/initramfs"

machine_attempt() { :; }
machine_run verbs "$work/console" "$SECONDS_MAX" "$kernel" "$work/initramfs" "" -smp 2 -m 2048
grep -E '^(tests|engine|machine|verbs):|^(Provider|verbs|tcp|Ratio) ' "$work/console"
say "verbs: passed in $SECONDS s"
