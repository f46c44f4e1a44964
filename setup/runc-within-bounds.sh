#!/usr/bin/env bash
# A container runtime: runc, less the capabilities that this machine itself doesn't have. Some virtual machines are
# started with a reduced bounding set, and there runc refuses every privileged container, because it is asked for
# capabilities that can't be given.
set -euo pipefail

# bounding_set: names of the capabilities in this process's bounding set, as a JSON array.
bounding_set() {
    capsh --print | sed -n 's/^Bounding set *=//p' | jq -Rc 'split(",") | map(ascii_upcase)'
}

# option LONG SHORT ARGUMENT...: value of that option among runc's arguments, or nothing.
option() {
    local long=$1 short=$2
    shift 2
    while (($# > 0)); do
        case $1 in
        "$long" | "$short") echo "${2:-}" && return ;;
        "$long"=*) echo "${1#*=}" && return ;;
        esac
        shift
    done
}

# narrow FILE PATH: takes from the capability lists at that path of the JSON file what is out of bounds.
narrow() {
    local file=$1 path=$2 narrowed
    [[ -f $file ]] || return 0
    narrowed=$(jq -c --argjson bound "$(bounding_set)" \
        "if $path then $path |= map_values(map(select(IN(\$bound[])))) else . end" "$file")
    printf '%s' "$narrowed" >"$file"
}

for argument in "$@"; do
    case $argument in
    create | run)
        bundle=$(option --bundle -b "$@")
        narrow "${bundle:-.}/config.json" .process.capabilities
        break
        ;;
    exec)
        process=$(option --process -p "$@")
        [[ -z $process ]] || narrow "$process" .capabilities
        break
        ;;
    esac
done
exec runc "$@"
