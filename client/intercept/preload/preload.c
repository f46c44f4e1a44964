// libweir_intercept.so, the library that programs are started with.
//
// It is there from a program's start, so it has to cost next to nothing and must not fail: it needs no other library, and does
// without what the C library lacks. The first call on a file of a mount of Weir loads libweir_direct.so, which lies beside it and
// does the work. Before that, and where that library can't be had, as with another C library than glibc, each call goes on to the
// C library's own function.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/stat.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload.h"

// What is weak may be missing: then its address is NULL. A glibc before 2.34 has the first three in a library that the program need
// not have, and later ones lack the next two. Only glibc has the last one.
#pragma weak dlsym
#pragma weak dlopen
#pragma weak dladdr
extern __attribute__((weak)) void *__libc_dlsym(void *library, const char *name);
extern __attribute__((weak)) void *__libc_dlopen_mode(const char *name, int mode);
extern __attribute__((weak)) char _rtld_global_ro[];

// `__RTLD_DLOPEN` of glibc, which `__libc_dlopen_mode` asks for.
#define MODE_OF_GLIBC 0x80000000

// Asks whether a file is on a mount of Weir (`weir_dfs::direct::PRESENT`).
#define PRESENT 0xd704

// Tells the mount that a file is mapped (`weir_dfs::direct::MAP`).
#define MAPPED 0xd703

// Calls that move data: result, name, another name if the C library may have only that, what it takes, how that is passed on,
// and the descriptor whose file decides who does it.
#define MOVING(CALL)                                                                                                     \
    CALL(ssize_t, read, "read", (int fd, void *to, size_t count), (fd, to, count), fd)                                   \
    CALL(ssize_t, __read_chk, "", (int fd, void *to, size_t count, size_t room), (fd, to, count, room), fd)              \
    CALL(ssize_t, pread64, "pread", (int fd, void *to, size_t count, off64_t at), (fd, to, count, at), fd)               \
    CALL(ssize_t, __pread64_chk, "", (int fd, void *to, size_t count, off64_t at, size_t room),                          \
         (fd, to, count, at, room), fd)                                                                                  \
    CALL(ssize_t, readv, "", (int fd, const struct iovec *to, int count), (fd, to, count), fd)                           \
    CALL(ssize_t, preadv64, "preadv", (int fd, const struct iovec *to, int count, off64_t at), (fd, to, count, at), fd)  \
    CALL(ssize_t, preadv64v2, "preadv2", (int fd, const struct iovec *to, int count, off64_t at, int flags),             \
         (fd, to, count, at, flags), fd)                                                                                 \
    CALL(ssize_t, write, "", (int fd, const void *from, size_t count), (fd, from, count), fd)                            \
    CALL(ssize_t, pwrite64, "pwrite", (int fd, const void *from, size_t count, off64_t at), (fd, from, count, at), fd)   \
    CALL(ssize_t, writev, "", (int fd, const struct iovec *from, int count), (fd, from, count), fd)                      \
    CALL(ssize_t, pwritev64, "pwritev", (int fd, const struct iovec *from, int count, off64_t at),                       \
         (fd, from, count, at), fd)                                                                                      \
    CALL(ssize_t, pwritev64v2, "pwritev2", (int fd, const struct iovec *from, int count, off64_t at, int flags),         \
         (fd, from, count, at, flags), fd)                                                                               \
    CALL(ssize_t, sendfile64, "sendfile", (int to, int from, off64_t *at, size_t count), (to, from, at, count), from)    \
    CALL(ssize_t, splice, "", (int from, off64_t *at, int to, off64_t *to_at, size_t count, unsigned flags),             \
         (from, at, to, to_at, count, flags), from)                                                                      \
    CALL(ssize_t, copy_file_range, "", (int from, off64_t *at, int to, off64_t *to_at, size_t count, unsigned flags),    \
         (from, at, to, to_at, count, flags), from)

// Calls that close descriptors: instead of a file that decides, the first and the last of these descriptors.
#define CLOSING(CALL)                                                                                                    \
    CALL(int, close, "", (int fd), (fd), fd, fd)                                                                         \
    CALL(int, dup2, "", (int from, int to), (from, to), to, to)                                                          \
    CALL(int, dup3, "", (int from, int to, int flags), (from, to, flags), to, to)                                        \
    CALL(int, close_range, "", (unsigned first, unsigned last, int flags), (first, last, flags), first, last)            \
    CALL(int, fclose, "", (FILE * file), (file), fileno(file), fileno(file))                                             \
    CALL(FILE *, freopen64, "freopen", (const char *path, const char *mode, FILE *file), (path, mode, file),             \
         fileno(file), fileno(file))

// What both libraries hand to each other: functions of the C library, and those to be called instead, in this order.
struct calls {
    size_t bytes;
#define MEMBER(result, name, other, parameters, ...) result(*name) parameters;
    MOVING(MEMBER)
    CLOSING(MEMBER)
    void (*closefrom)(int);
    void *(*mmap64)(void *, size_t, int, int, int, off64_t);
};

// Descriptors of which is known that they are of no use to the other library.
#define DESCRIPTORS (1 << 14)
static _Atomic char foreign[DESCRIPTORS];

// What the C library has, each found at its first call.
static struct calls own = {.bytes = sizeof own};

// The functions of the other library, once it is loaded.
static _Atomic(const struct calls *) loaded;

// Whether it was tried.
static atomic_flag tried = ATOMIC_FLAG_INIT;

// The other library itself.
static _Atomic(void *) other_library;

// The process that this memory belongs to. A forked child finds a zero; one that shares its parent's memory, the parent.
static _Atomic pid_t *owner;

// Stands for a function that the C library lacks: a program that looks whether there is one finds this library's.
long missing(void) {
    errno = ENOSYS;
    return -1;
}

// The next function of a name after this library's.
void *find(const char *name, const char *other) {
    void *found = NULL;
    if (dlsym != NULL) {
        found = dlsym(RTLD_NEXT, name);
        if (found == NULL && *other != '\0') found = dlsym(RTLD_NEXT, other);
    } else if (__libc_dlsym != NULL && __libc_dlopen_mode != NULL) {
        void *library = __libc_dlopen_mode("libc.so.6", RTLD_LAZY | (int)MODE_OF_GLIBC);
        if (library != NULL) found = __libc_dlsym(library, name);
    }
    return found;
}

#define FIND(result, name, other, ...)                                                                                   \
    static void find_##name(void) {                                                                                      \
        if (own.name != NULL) return;                                                                                    \
        void *found = find(#name, other);                                                                                \
        own.name = found != NULL ? found : (void *)missing;                                                              \
    }
MOVING(FIND)
CLOSING(FIND)
FIND(void, closefrom, "")
FIND(void *, mmap64, "mmap")

__attribute__((constructor)) static void begin(void) {
    long page = syscall(SYS_mmap, NULL, sizeof *owner, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == -1) return;
    if (syscall(SYS_madvise, page, sizeof *owner, MADV_WIPEONFORK) != 0) return;
    owner = (_Atomic pid_t *)page;
    *owner = (pid_t)syscall(SYS_getpid);
}

// Whether this process may load the other library: a child that shares its parent's memory may not, since the parent would find
// locks and threads of the child.
static int is_own(void) {
    if (owner == NULL) return 0;
    pid_t process = (pid_t)syscall(SYS_getpid), unset = 0;
    return atomic_compare_exchange_strong(owner, &unset, process) || unset == process;
}

// Loads the other library. Once: a program that can't have it goes on without.
static const struct calls *load(void) {
    static const char name[] = "libweir_direct.so";
    char path[4096];
    if (_rtld_global_ro == NULL || dlopen == NULL || dlsym == NULL || dladdr == NULL || !is_own()) return NULL;
    if (atomic_flag_test_and_set(&tried)) return NULL;
    int before = errno;
    Dl_info here;
    const struct calls *found = NULL;
    if (dladdr((void *)load, &here) != 0) {
        size_t length = 0, folder = 0;
        for (; here.dli_fname[length] != '\0' && length < sizeof path - sizeof name; length++) {
            path[length] = here.dli_fname[length];
            if (path[length] == '/') folder = length + 1;
        }
        for (size_t at = 0; at < sizeof name; at++) path[folder + at] = name[at];
        void *library = folder == 0 || here.dli_fname[length] != '\0' ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const struct calls *(*start)(const struct calls *) = NULL;
        if (library != NULL) start = dlsym(library, "weir_direct_start");
        if (start != NULL) {
#define FIND_NOW(result, name, ...) find_##name();
            MOVING(FIND_NOW)
            CLOSING(FIND_NOW)
            find_closefrom();
            find_mmap64();
            found = start(&own);
            if (found != NULL) atomic_store_explicit(&other_library, library, memory_order_release);
        }
    }
    errno = before;
    atomic_store_explicit(&loaded, found, memory_order_release);
    return found;
}

void *others(const char *name) {
    if (atomic_load_explicit(&loaded, memory_order_acquire) == NULL) load();
    void *library = atomic_load_explicit(&other_library, memory_order_acquire);
    return library != NULL && is_own() ? dlsym(library, name) : NULL;
}

// Whether a descriptor's file is on a mount of Weir. A number alone says nothing: pipes, terminals and files of other file
// systems are asked once, and a file system without a device is asked itself.
static int is_ours(int fd) {
    // What is written to standard error comes from signal handlers, too, which must not load a library.
    if (fd < 0 || fd == 2 || (fd < DESCRIPTORS && foreign[fd])) return 0;
    struct statx found = {0};
    int before = errno;
    int is = syscall(SYS_statx, fd, "", EMPTY_PATH | DONT_SYNC, STATX_TYPE, &found) == 0 &&
             (found.stx_mode & 0170000) == 0100000 && found.stx_dev_major == 0 &&
             syscall(SYS_ioctl, fd, PRESENT, NULL) == 0;
    errno = before;
    if (!is && fd < DESCRIPTORS) foreign[fd] = 1;
    return is;
}

// The functions for a descriptor, if it isn't for the C library's own to do.
static inline const struct calls *direct(int fd) {
    const struct calls *found = atomic_load_explicit(&loaded, memory_order_acquire);
    return found != NULL || !is_ours(fd) ? found : load();
}

static inline void forget(unsigned first, unsigned last) {
    for (unsigned fd = first; fd <= last && fd < DESCRIPTORS; fd++) foreign[fd] = 0;
}

#define MOVE(result, name, other, parameters, arguments, fd)                                                             \
    EXPORTED result name parameters {                                                                                    \
        const struct calls *others = direct(fd);                                                                         \
        if (others != NULL) return others->name arguments;                                                               \
        find_##name();                                                                                                   \
        return own.name arguments;                                         \
    }
MOVING(MOVE)

#define CLOSE(result, name, other, parameters, arguments, first, last)                                                   \
    EXPORTED result name parameters {                                                                                    \
        const struct calls *others = atomic_load_explicit(&loaded, memory_order_acquire);                                \
        if (others != NULL) return others->name arguments;                                                               \
        forget((unsigned)(first), (unsigned)(last));                                                                     \
        find_##name();                                                                                                   \
        return own.name arguments;                                         \
    }
CLOSING(CLOSE)

EXPORTED void closefrom(int first) {
    const struct calls *others = atomic_load_explicit(&loaded, memory_order_acquire);
    if (others != NULL) {
        others->closefrom(first);
        return;
    }
    forget(first < 0 ? 0 : (unsigned)first, ~0U);
    find_closefrom();
    own.closefrom(first);
}

EXPORTED void *mmap64(void *address, size_t length, int access, int flags, int fd, off64_t at) {
    int file = flags & MAP_ANONYMOUS ? -1 : fd;
    const struct calls *others = direct(file);
    if (others != NULL) return others->mmap64(address, length, access, flags, fd, at);
    if (is_ours(file)) {
        // Another thread may be about to load the other library, which must not move data past this mapping.
        int before = errno;
        syscall(SYS_ioctl, file, MAPPED, NULL);
        errno = before;
    }
    find_mmap64();
    return own.mmap64(address, length, access, flags, fd, at);
}

// Offsets have 64 bits on all machines that this is built for, so these are the same functions.
_Static_assert(sizeof(off_t) == sizeof(off64_t), "another name needs another function");
#define ALIAS(result, name, other, parameters) EXPORTED result name parameters __attribute__((alias(#other)));
ALIAS(ssize_t, pread, pread64, (int fd, void *to, size_t count, off_t at))
ALIAS(ssize_t, __pread_chk, __pread64_chk, (int fd, void *to, size_t count, off_t at, size_t room))
ALIAS(ssize_t, preadv, preadv64, (int fd, const struct iovec *to, int count, off_t at))
ALIAS(ssize_t, preadv2, preadv64v2, (int fd, const struct iovec *to, int count, off_t at, int flags))
ALIAS(ssize_t, pwrite, pwrite64, (int fd, const void *from, size_t count, off_t at))
ALIAS(ssize_t, pwritev, pwritev64, (int fd, const struct iovec *from, int count, off_t at))
ALIAS(ssize_t, pwritev2, pwritev64v2, (int fd, const struct iovec *from, int count, off_t at, int flags))
ALIAS(void *, mmap, mmap64, (void *address, size_t length, int access, int flags, int fd, off_t at))
ALIAS(ssize_t, sendfile, sendfile64, (int to, int from, off_t *at, size_t count))
ALIAS(FILE *, freopen, freopen64, (const char *path, const char *mode, FILE *file))
