#!/usr/bin/env bash
# Every relative link of the Markdown pages leads to a file that is in the repository, and to a heading that is in it.
# shellcheck disable=SC2016  # the backticks are Markdown's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The anchors of a page, as its readers' programs make them from headings.
anchors() {
    sed -nE '/^```/,/^```/d; s/^#{1,6} +(.*)$/\1/p' "$1" | tr '[:upper:]' '[:lower:]' |
        sed -E 's/`//g; s/[^a-z0-9 _-]//g; s/ /-/g'
}

broken=0
while IFS= read -r page; do
    while IFS= read -r link; do
        path=${link%%#*}
        target=$page
        [[ -z $path ]] || target=$(dirname "$page")/$path
        if [[ ! -e $target ]]; then
            printf '%s: nothing at %s\n' "$page" "$link" >&2
            broken=$((broken + 1))
        elif [[ $link == *#* && $target == *.md ]] && ! anchors "$target" | grep -qxF -- "${link#*#}"; then
            printf '%s: no heading for %s\n' "$page" "$link" >&2
            broken=$((broken + 1))
        fi
    done < <(sed -E '/^```/,/^```/d; s/`[^`]*`//g' "$page" | grep -oE '\]\([^) ]+\)' |
        sed -E 's/^\]\((.*)\)$/\1/' | grep -vE '^(https?|mailto):' || test $? -eq 1)
done < <(git ls-files '*.md')
if ((broken > 0)); then
    printf '%d links lead nowhere\n' "$broken" >&2
    exit 1
fi
