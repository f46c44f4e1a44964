#!/bin/sh
# Builds libweir_intercept.so, the library that programs are started with.
#
#   build.sh FILE
#
# It is linked with nothing: a program with another C library, or an older one, must start with it as well.
set -eu
here=$(dirname "$0")
exec "${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -nostdlib -nostartfiles -fno-builtin -fno-stack-protector \
    -U_FORTIFY_SOURCE -fvisibility=hidden -Wl,-soname,libweir_intercept.so -Wl,--hash-style=both -Wl,-z,nodelete -s \
    -o "$1" "$here/preload.c"
