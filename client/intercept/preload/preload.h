// What the sources of the libraries that programs are started with have in common.
#pragma once

// Flags of `statx`, as the header that has the structure lacks them.
#define EMPTY_PATH 0x1000
#define DONT_SYNC 0x4000

#define EXPORTED __attribute__((visibility("default")))

// The next function of a name after this library's.
void *find(const char *name, const char *other);

// Stands for a function that the C library lacks.
long missing(void);

// A function of libweir_direct.so, which is loaded if it isn't yet. NULL: this process can't have it.
void *others(const char *name);
