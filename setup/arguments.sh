# Looking at a script's arguments before it builds what takes them. Sourced by scripts that build and run a program of their own.
# shellcheck shell=bash

# refuse TEXT: says what is wrong with the arguments, and ends the script.
refuse() {
    printf '%s: %s; see %s --help\n' "$WEIR_SCRIPT" "$1" "$WEIR_SCRIPT" >&2
    exit 2
}

# check_arguments ARGUMENT...: prints the help where it is asked for, and refuses what can't be understood. The program looks at the
# values. The script says its own name in WEIR_SCRIPT, in WEIR_VALUED its options with a value, in WEIR_BARE those without, and in
# WEIR_NAMES what may be named, all between blanks; and its function usage prints the help.
check_arguments() {
    local name
    while (($# > 0)); do
        # An argument with a blank in it is no two of those that are named between blanks.
        name=" ${1// /?} "
        if [[ $1 == -h || $1 == --help ]]; then
            usage
            exit 0
        elif [[ $WEIR_VALUED == *"$name"* ]]; then
            (($# > 1)) || refuse "$1 needs a value"
            shift
        elif [[ "$WEIR_BARE$WEIR_NAMES" != *"$name"* && ($1 != *=* || $WEIR_VALUED != *" ${1%%=*} "*) ]]; then
            refuse "there is no $1; what may be named:${WEIR_NAMES% }"
        fi
        shift
    done
}
