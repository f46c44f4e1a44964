#!/usr/bin/env bash
# Installs the command line under its names, with completion and manual pages.
#
#   install_programs.sh PROGRAM PREFIX
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

(($# == 2)) || fail "usage: install_programs.sh PROGRAM PREFIX"
program=$1
prefix=$(realpath -m "$2")
[[ -x $program ]] || fail "there is no $program: build it first, by 'make build'"

install -D -m 755 "$program" "$prefix/bin/weir"
mkdir -p "$prefix"/share/{bash-completion/completions,zsh/site-functions,man/man1}
for name in weir daos dmg; do
    [[ $name == weir ]] || ln -sfn weir "$prefix/bin/$name"
    "$program" completion bash --program "$name" >"$prefix/share/bash-completion/completions/$name"
    "$program" completion zsh --program "$name" >"$prefix/share/zsh/site-functions/_$name"
done
"$program" manual "$prefix/share/man/man1" >/dev/null
say "installed weir, daos and dmg in $prefix/bin"
