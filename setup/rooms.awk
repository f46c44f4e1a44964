# The imports of one crate's rooms, against their order. Called by setup/rooms.sh with `source` (the crate's source folder) and `order`
# (its rooms, lowest first); reads the crate's files, its root first. Prints each import of a higher room, or of what the root defines,
# as file:line. What the root only exports counts as the room that it is from.

BEGIN {
    count = split(order, rooms, " ")
    for (number = 1; number <= count; number++) {
        rank[rooms[number]] = number
    }
}

# begin_file sets the file's module path (parts[1..depth]) and its room.
function begin_file(    name) {
    split("", judged)
    name = substr(FILENAME, length(source) + 2)
    sub(/\.rs$/, "", name)
    sub(/\/mod$/, "", name)
    depth = split(name, parts, "/")
    room = parts[1]
    is_root = (depth == 1 && (room == "lib" || room == "main")) || room == "bin"
    in_use = is_test = is_skipping = 0
    if (!is_root && !(room in rank)) {
        breach(FILENAME ":1: room " room " is not in the order of " source)
    }
}

function breach(text) {
    print text
    breaches++
}

# check judges one path that is named in a line.
function check(path,    names, total, at, up, target) {
    total = split(path, names, "::")
    at = 1
    if (names[1] == "crate") {
        at = 2
        target = names[2]
    } else if (names[1] == "super") {
        up = 0
        while (at <= total && names[at] == "super") {
            at++
            up++
        }
        # A level up from a module of the crate's root is the root.
        target = up < depth ? parts[1] : names[at]
    } else {
        return
    }
    if (target == room || (FNR, target) in judged) {
        return
    }
    judged[FNR, target] = 1
    if (target in exported) {
        target = exported[target]
    }
    if (target == room || target == "another crate") {
        return
    }
    if (!(target in rank)) {
        breach(FILENAME ":" FNR ": imports " target " from the crate's root, which is above all rooms; name the room that defines it")
    } else if (rank[target] > rank[room]) {
        breach(FILENAME ":" FNR ": " room " imports " target ", which is above it")
    }
}

# export_name notes which room a name of the crate's root is from.
function export_name(path, alias,    names, total, at) {
    total = split(path, names, "::")
    if (names[total] == "self") {
        total--
    }
    at = names[1] == "crate" || names[1] == "self" ? 2 : 1
    if (at < total || !(names[at] in rank)) {
        exported[alias == "" ? names[total] : alias] = names[at] in rank ? names[at] : "another crate"
    }
}

# take_use reads a part of a use statement: prefix[level] is the path before the open braces.
function take_use(text,    token) {
    while (match(text, /[A-Za-z_][A-Za-z_0-9]*|::|[{},;*]/)) {
        token = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (token == "{") {
            level++
            prefix[level] = path
        } else if (token == "," || token == "}" || token == ";") {
            if (!is_done && path != prefix[level]) {
                if (is_root) {
                    export_name(path, alias)
                } else {
                    check(path)
                }
            }
            # What is behind a brace has been judged inside.
            is_done = token == "}"
            if (token == "}") {
                level--
            }
            path = prefix[level]
            renamed = 0
            alias = ""
            if (token == ";") {
                in_use = 0
                return
            }
        } else if (token == "as") {
            renamed = 1
        } else if (renamed) {
            alias = token
        } else {
            path = path token
        }
    }
}

FNR == 1 { begin_file() }
FILENAME ~ /\/tests(\.rs$|\/)/ { next }

{
    line = $0
    sub(/(^|[^:"])\/\/.*$/, "", line)
}

# Tests may import what they like.
is_skipping {
    is_skipping = index(line, indent "}") != 1
    next
}
line ~ /^ *#\[cfg\((test|all\(test.*)\)\]/ {
    is_test = 1
    next
}
is_test && line ~ /^ *#\[/ { next }
is_test {
    is_test = 0
    match(line, /^ */)
    indent = substr(line, 1, RLENGTH)
    is_skipping = line !~ /;[ ]*$/
    next
}

!in_use && line ~ /^ *(pub(\([a-z: ]*\))? )?use / {
    in_use = 1
    level = 0
    path = ""
    prefix[0] = ""
    is_done = 0
    renamed = 0
    alias = ""
    sub(/^ *(pub(\([a-z: ]*\))? )?use /, "", line)
}
in_use {
    take_use(line)
    next
}
!is_root {
    while (match(line, /(crate|super)(::[A-Za-z_][A-Za-z_0-9]*)+/)) {
        found = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        check(found)
    }
}

END { exit breaches > 0 }
