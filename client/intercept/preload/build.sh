#!/bin/sh
# Builds a library that programs are started with: libweir_intercept.so, or with names and attributes libpil4dfs.so.
#
#   build.sh FILE
#
# The file's name says which. It is linked with nothing: a program with another C library, or an older one, must start with it as well.
set -eu
here=$(dirname "$0")
name=$(basename "$1")
case $name in
    libweir_intercept.so) sources=$here/preload.c ;;
    libpil4dfs.so) sources="$here/preload.c $here/names.c" ;;
    *) echo "build.sh: there is no library $name" >&2 && exit 2 ;;
esac
# shellcheck disable=SC2086
exec "${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -nostdlib -nostartfiles -fno-builtin -fno-stack-protector \
    -U_FORTIFY_SOURCE -fvisibility=hidden "-Wl,-soname,$name" -Wl,--hash-style=both -Wl,-z,nodelete -s \
    -o "$1" $sources
