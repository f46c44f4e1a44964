#!/usr/bin/env bash
# Installs what programs for DAOS are built with: headers, libraries by DAOS's names and versions, pkg-config and CMake files.
#
#   install_client.sh LIBRARY PREFIX [INTERCEPTION]
#
# All functions are in libdaos.so.2. The other libraries are filters: they have the names of the functions that programs look for in
# them, and the dynamic linker takes each from libdaos.so.2.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

(($# == 2 || $# == 3)) || fail "usage: install_client.sh LIBRARY PREFIX [INTERCEPTION]"
library=$1
prefix=$(realpath -m "$2")
libraries=$prefix/lib
[[ -f $library ]] || fail "there is no $library: build it first, by 'make build'"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# 'TYPE NAME' of each symbol: T for functions.
nm -D --defined-only --format=posix "$library" | awk '{ print $2, $1 }' | sort -k 2 >"$work/symbols"

# filter FILE SONAME PATTERN: makes a library with the names that match the pattern, and a link by its plain name.
filter() {
    local file=$1 soname=$2 pattern=$3
    # Nothing of a filter is ever run.
    awk -v pattern="$pattern" '$2 ~ pattern { print ($1 == "T" ? "void " $2 "(void) { __builtin_trap(); }" : "int " $2 ";") }' \
        "$work/symbols" >"$work/filter.c"
    "${CC:-cc}" -shared -fPIC -nostdlib -fno-builtin -w -O1 -Wl,-soname,"$soname" -Wl,-F,libdaos.so.2 -Wl,-rpath,"\$ORIGIN" \
        -Wl,--no-as-needed -o "$libraries/$file" "$work/filter.c" "$libraries/libdaos.so.2"
    [[ $file == "${file%%.so*}.so" ]] || ln -sfn "$file" "$libraries/${file%%.so*}.so"
}

install_libraries() {
    mkdir -p "$libraries"
    install -m 755 "$library" "$libraries/libdaos.so.2.8.0"
    ln -sfn libdaos.so.2.8.0 "$libraries/libdaos.so.2"
    ln -sfn libdaos.so.2 "$libraries/libdaos.so"
    filter libdfs.so libdfs.so '^dfs_'
    filter libduns.so libduns.so '^duns_'
    filter libgurt.so.4 libgurt.so.4 '^d_'
    filter libcart.so.4 libcart.so.4 '^crt_'
    filter libdaos_common.so libdaos_common.so '^(tse_|daos_(der2errno|prop_|ac[el]_|rank_list_))'
    filter libdaos_tests.so libdaos_tests.so '^(dts_|dmg_)'
    # Some programs look there.
    [[ -e $prefix/lib64 ]] || ln -sfn lib "$prefix/lib64"
}

install_headers() {
    local from=$WEIR_REPO/client/libdaos/include header
    while read -r header; do
        install -D -m 644 "$from/$header" "$prefix/include/$header"
    done < <(cd "$from" && find . -name '*.h' -printf '%P\n')
}

# package NAME DESCRIPTION LIBS: a pkg-config file.
package() {
    mkdir -p "$libraries/pkgconfig"
    cat >"$libraries/pkgconfig/$1.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: $1
Description: $2
Version: 2.8.0
Libs: -L\${libdir} $3
Cflags: -I\${includedir}
PC
}

install_cmake() {
    mkdir -p "$libraries/cmake/daos"
    cat >"$libraries/cmake/daos/daos-config-version.cmake" <<'CMAKE'
set(PACKAGE_VERSION 2.8.0)
if(PACKAGE_FIND_VERSION_MAJOR EQUAL 2 AND PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
CMAKE
    cat >"$libraries/cmake/daos/daos-config.cmake" <<'CMAKE'
get_filename_component(DAOS_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(DAOS_INCLUDE_DIRS "${DAOS_PREFIX}/include")
set(DAOS_LIBRARIES)
foreach(library daos dfs duns gurt daos_common)
    if(NOT TARGET daos::${library})
        add_library(daos::${library} SHARED IMPORTED)
        set_target_properties(daos::${library} PROPERTIES
            IMPORTED_LOCATION "${DAOS_PREFIX}/lib/lib${library}.so"
            INTERFACE_INCLUDE_DIRECTORIES "${DAOS_INCLUDE_DIRS}")
    endif()
    list(APPEND DAOS_LIBRARIES daos::${library})
endforeach()
set(daos_FOUND TRUE)
CMAKE
}

# The library that programs are run with, also by the name that DAOS has for one of data only; the one of names, too, by DAOS's name; and
# the one that they load.
install_interception() {
    [[ -f $1 ]] || fail "there is no $1: build it first, by 'make build'"
    install -m 755 "$1" "$libraries/libweir_direct.so"
    "$WEIR_REPO/client/intercept/preload/build.sh" "$libraries/libweir_intercept.so"
    ln -sfn libweir_intercept.so "$libraries/libioil.so"
    "$WEIR_REPO/client/intercept/preload/build.sh" "$libraries/libpil4dfs.so"
}

install_libraries
(($# == 2)) || install_interception "$3"
install_headers
package daos "The client interface of DAOS, of Weir" "-ldaos -ldaos_common -lgurt"
package dfs "File systems in containers, and names of containers" "-ldfs -lduns -ldaos"
install_cmake
say "installed the client's libraries and headers in $prefix"
