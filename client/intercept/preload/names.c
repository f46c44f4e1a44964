// What libpil4dfs.so has beside libweir_intercept.so: calls on names and attributes.
//
// Which mounts of Weir there are is read from the mount table once, at the first such call. A call on a path of one of them, or
// relative to a directory of one, goes to libweir_direct.so; that says whether it has done it, or the kernel has to. All others go to
// the C library. Nothing is told by a path or a descriptor alone: the kernel says what is mounted there now, and what a directory is,
// without asking the mount.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "preload.h"

#pragma GCC diagnostic ignored "-Wattribute-alias"
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "another name needs another function");
_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64), "another name needs another function");

// Mounts of a process, at most; those behind them go through the kernel.
#define MOUNTS 16

// Longest path of one, with its end.
#define PATH_BYTES 1024

// Longest line of the mount table that is understood.
#define LINE_BYTES 4096

// What `question.rs` calls `KERNEL`: it has to go through the kernel.
#define KERNEL (-2)

#define READ_ONLY 1U
#define NO_PROGRAMS 2U

// A mount of Weir. `question.rs` has the same structures.
struct mount {
    // Number of the mount; and the minor one of its device.
    unsigned id;
    unsigned device;
    unsigned flags;
    size_t length;
    char path[PATH_BYTES];
};

struct mounts {
    size_t bytes;
    size_t count;
    struct mount all[MOUNTS];
};

// Where a path begins.
struct base {
    unsigned mount;
    int descriptor;
    // Of the mount's root, for a path that isn't relative; else of the directory.
    int is_relative;
    struct statx found;
};

struct name_calls {
    size_t bytes;
    // Directories that the other library has opened are in this memory.
    const char *first, *end;
    int (*look)(const struct base *, const char *path, int flags, struct statx *found);
    int (*may)(const struct base *, const char *path, int mode, int flags);
    ssize_t (*read_link)(const struct base *, const char *path, char *to, size_t room);
    int (*make)(const struct base *, const char *path, mode_t mode, const char *target);
    // The value of an extended attribute, or without a name the names of all.
    ssize_t (*attribute)(const struct base *, const char *path, int follows, const char *name, char *to, size_t room);
    // `(void *)KERNEL`, NULL with errno, or a directory.
    void *(*open)(const struct base *, const char *path);
    struct dirent64 *(*next)(void *directory);
    int (*close)(void *directory);
    long (*place)(void *directory);
    void (*go)(void *directory, long place);
    int (*descriptor)(void *directory);
};

static struct mounts mounts = {.bytes = sizeof mounts};

// 1 while the mount table is read, 2 when it was.
static _Atomic int is_read;

static _Atomic(const struct name_calls *) loaded_calls;

static int is_same(const char *one, const char *other, size_t length) {
    for (size_t at = 0; at < length; at++) {
        if (one[at] != other[at]) return 0;
    }
    return 1;
}

static size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length] != '\0') length++;
    return length;
}

// Whether one of the words, separated by commas, is this one.
static int has_word(const char *words, const char *word) {
    size_t length = length_of(word);
    for (;; words++) {
        if (is_same(words, word, length) && (words[length] == ',' || words[length] == '\0')) return 1;
        while (*words != ',' && *words != '\0') words++;
        if (*words == '\0') return 0;
    }
}

// Takes blanks, which the mount table has as octal numbers, back.
static void unescape(char *text) {
    char *to = text;
    for (; *text != '\0'; to++) {
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] >= '0' && text[2] <= '7' && text[3] >= '0' &&
            text[3] <= '7') {
            *to = (char)(((text[1] - '0') << 6) | ((text[2] - '0') << 3) | (text[3] - '0'));
            text += 4;
        } else {
            *to = *text++;
        }
    }
    *to = '\0';
}

static unsigned number(const char **text) {
    unsigned value = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++) value = value * 10 + (unsigned)(**text - '0');
    return value;
}

// A mount below another one hides a part of that: then all of that goes through the kernel. So does one that lies on it.
static void hide(const char *path) {
    for (size_t at = 0; at < mounts.count; at++) {
        const struct mount *mount = &mounts.all[at];
        if (is_same(path, mount->path, mount->length) && (path[mount->length] == '/' || path[mount->length] == '\0'))
            mounts.all[at].length = 0;
    }
}

// A line: id parent major:minor root path options [more] - type source options.
static void read_line(char *line) {
    char *fields[6] = {0}, *type = NULL, *super = NULL;
    size_t count = 0, behind = 0;
    for (char *at = line; *at != '\0';) {
        char *field = at;
        while (*at != ' ' && *at != '\0') at++;
        if (*at == ' ') *at++ = '\0';
        if (count < 6) fields[count++] = field;
        else if (behind == 0 && field[0] == '-' && field[1] == '\0') behind = 1;
        else if (behind == 1) type = field, behind = 2;
        else if (behind == 2) behind = 3;
        else if (behind == 3) super = field, behind = 4;
    }
    if (type == NULL || super == NULL) return;
    unescape(fields[4]);
    hide(fields[4]);
    const char *device = fields[2];
    static const char own_type[] = "fuse.weir";
    size_t length = length_of(fields[4]);
    int is_plain = fields[3][0] == '/' && fields[3][1] == '\0' && number(&device) == 0 && *device == ':' && length > 1 &&
                   length < PATH_BYTES && !has_word(fields[5], "idmapped");
    if (!is_same(type, own_type, sizeof own_type) || !is_plain || mounts.count == MOUNTS) return;
    struct mount *mount = &mounts.all[mounts.count++];
    const char *id = fields[0];
    device++;
    mount->id = number(&id);
    mount->device = number(&device);
    mount->length = length;
    int is_read_only = has_word(fields[5], "ro") || has_word(super, "ro");
    mount->flags = (is_read_only ? READ_ONLY : 0) | (has_word(fields[5], "noexec") ? NO_PROGRAMS : 0);
    for (size_t at = 0; at <= length; at++) mount->path[at] = fields[4][at];
}

static void read_mounts(void) {
    char line[LINE_BYTES], piece[LINE_BYTES];
    size_t length = 0, is_long = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    for (ssize_t got; (got = syscall(SYS_read, fd, piece, sizeof piece)) > 0;) {
        for (ssize_t at = 0; at < got; at++) {
            if (piece[at] == '\n') {
                line[length] = '\0';
                // What isn't understood may lie on any of them.
                if (is_long) mounts.count = 0;
                else read_line(line);
                length = is_long = 0;
            } else if (length < sizeof line - 1) {
                line[length++] = piece[at];
            } else {
                is_long = 1;
            }
        }
    }
    syscall(SYS_close, fd);
}

// Mounts of Weir in this process's namespace when it made its first such call.
static size_t known_mounts(void) {
    int state = atomic_load_explicit(&is_read, memory_order_acquire);
    if (state == 2) return mounts.count;
    int unread = 0;
    if (state != 0 || !atomic_compare_exchange_strong(&is_read, &unread, 1)) return 0;
    int before = errno;
    read_mounts();
    errno = before;
    atomic_store_explicit(&is_read, 2, memory_order_release);
    return mounts.count;
}

static int look_at(int fd, const char *path, int flags, struct statx *found) {
    return syscall(SYS_statx, fd, path, flags | DONT_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_MNT_ID, found) == 0 &&
           found->stx_dev_major == 0;
}

// Whether what was looked at lies on a mount. A kernel before 5.8 doesn't tell: then all goes through it.
static int is_on(const struct mount *mount, const struct statx *found) {
    return mount->length > 0 && (found->stx_mask & STATX_MNT_ID) != 0 && found->stx_mnt_id == mount->id &&
           found->stx_dev_minor == mount->device;
}

// Whether a path is of a mount of Weir, and where it begins.
static int is_of_mount(int at, const char *path, struct base *base) {
    size_t count = known_mounts();
    if (count == 0 || path == NULL) return 0;
    int before = errno, is = 0;
    *base = (struct base){.descriptor = at, .is_relative = path[0] != '/'};
    if (base->is_relative) {
        is = look_at(at, "", EMPTY_PATH, &base->found) && S_ISDIR(base->found.stx_mode);
        while (is && base->mount < count && !is_on(&mounts.all[base->mount], &base->found)) base->mount++;
        is = is && base->mount < count;
    } else {
        for (size_t each = 0; each < count; each++) {
            const struct mount *mount = &mounts.all[each];
            if (mount->length == 0 || !is_same(path, mount->path, mount->length) || path[mount->length] != '/') continue;
            base->mount = (unsigned)each;
            is = look_at(AT_FDCWD, mount->path, 0, &base->found) && is_on(mount, &base->found) && base->found.stx_ino == 1;
        }
    }
    errno = before;
    return is;
}

// The functions for a path, if it isn't for the C library's own to do.
static const struct name_calls *calls_for(int at, const char *path, struct base *base) {
    if (!is_of_mount(at, path, base)) return NULL;
    const struct name_calls *found = atomic_load_explicit(&loaded_calls, memory_order_acquire);
    if (found != NULL) return found;
    int before = errno;
    const struct name_calls *(*start)(const struct mounts *) = others("weir_direct_names");
    if (start != NULL) found = start(&mounts);
    errno = before;
    if (found != NULL && found->bytes != sizeof *found) found = NULL;
    if (found != NULL) atomic_store_explicit(&loaded_calls, found, memory_order_release);
    return found;
}

// The functions for an open directory, if the other library has opened it.
static const struct name_calls *calls_of(const void *directory) {
    const struct name_calls *found = atomic_load_explicit(&loaded_calls, memory_order_acquire);
    const char *at = directory;
    return found != NULL && at >= found->first && at < found->end ? found : NULL;
}

#define OWN(result, name, other, parameters)                                                                             \
    static result(*own_##name) parameters;                                                                               \
    static void find_##name(void) {                                                                                      \
        if (own_##name != NULL) return;                                                                                  \
        void *found = find(#name, other);                                                                                \
        own_##name = found != NULL ? found : (void *)missing;                                                            \
    }

OWN(int, statx, "", (int, const char *, int, unsigned, struct statx *))
OWN(int, access, "", (const char *, int))
OWN(int, faccessat, "", (int, const char *, int, int))
OWN(int, eaccess, "euidaccess", (const char *, int))
OWN(ssize_t, readlink, "", (const char *, char *, size_t))
OWN(ssize_t, readlinkat, "", (int, const char *, char *, size_t))
OWN(ssize_t, __readlink_chk, "", (const char *, char *, size_t, size_t))
OWN(ssize_t, __readlinkat_chk, "", (int, const char *, char *, size_t, size_t))
OWN(ssize_t, getxattr, "", (const char *, const char *, void *, size_t))
OWN(ssize_t, lgetxattr, "", (const char *, const char *, void *, size_t))
OWN(ssize_t, listxattr, "", (const char *, char *, size_t))
OWN(ssize_t, llistxattr, "", (const char *, char *, size_t))
OWN(int, mkdir, "", (const char *, mode_t))
OWN(int, mkdirat, "", (int, const char *, mode_t))
OWN(int, symlink, "", (const char *, const char *))
OWN(int, symlinkat, "", (const char *, int, const char *))
OWN(DIR *, opendir, "", (const char *))
OWN(DIR *, fdopendir, "", (int))
OWN(struct dirent *, readdir, "readdir64", (DIR *))
OWN(int, readdir_r, "readdir64_r", (DIR *, struct dirent *, struct dirent **))
OWN(int, closedir, "", (DIR *))
OWN(void, rewinddir, "", (DIR *))
OWN(void, seekdir, "", (DIR *, long))
OWN(long, telldir, "", (DIR *))
OWN(int, dirfd, "", (DIR *))

// What a program before glibc 2.33 has instead of `stat` and its like: the first argument says which structure it takes.
#if defined(__x86_64__)
#define OLD_VERSION 1
#define STAT_AT SYS_newfstatat
#else
#define OLD_VERSION 0
#ifdef SYS_newfstatat
#define STAT_AT SYS_newfstatat
#else
#define STAT_AT SYS_fstatat
#endif
#endif

static void convert(const struct statx *found, struct stat *to) {
    *to = (struct stat){0};
    to->st_dev = makedev(found->stx_dev_major, found->stx_dev_minor);
    to->st_ino = found->stx_ino;
    to->st_mode = found->stx_mode;
    to->st_nlink = found->stx_nlink;
    to->st_uid = found->stx_uid;
    to->st_gid = found->stx_gid;
    to->st_rdev = makedev(found->stx_rdev_major, found->stx_rdev_minor);
    to->st_size = (off_t)found->stx_size;
    to->st_blksize = (blksize_t)found->stx_blksize;
    to->st_blocks = (blkcnt_t)found->stx_blocks;
    to->st_atim = (struct timespec){found->stx_atime.tv_sec, found->stx_atime.tv_nsec};
    to->st_mtim = (struct timespec){found->stx_mtime.tv_sec, found->stx_mtime.tv_nsec};
    to->st_ctim = (struct timespec){found->stx_ctime.tv_sec, found->stx_ctime.tv_nsec};
}

// `stat` and its like go on as the system call that the C library makes of them: the structure is the kernel's.
static int stat_at(int at, const char *path, struct stat *to, int flags) {
    struct base base;
    struct statx found;
    const int known = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | EMPTY_PATH;
    const struct name_calls *calls = flags & ~known ? NULL : calls_for(at, path, &base);
    int looked = calls == NULL ? KERNEL : calls->look(&base, path, flags, &found);
    if (looked == 0) convert(&found, to);
    return looked == KERNEL ? (int)syscall(STAT_AT, at, path, to, flags) : looked;
}

EXPORTED int stat(const char *path, struct stat *to) {
    return stat_at(AT_FDCWD, path, to, 0);
}

EXPORTED int lstat(const char *path, struct stat *to) {
    return stat_at(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);
}

EXPORTED int fstatat(int at, const char *path, struct stat *to, int flags) {
    return stat_at(at, path, to, flags);
}

// Of a directory the other library knows more than the kernel may: a name that it has added. All else is the kernel's.
EXPORTED int fstat(int fd, struct stat *to) {
    return fd >= 0 && known_mounts() > 0 ? stat_at(fd, "", to, EMPTY_PATH) : (int)syscall(SYS_fstat, fd, to);
}

EXPORTED int fstat64(int fd, struct stat64 *to) __attribute__((alias("fstat")));
EXPORTED int stat64(const char *path, struct stat64 *to) __attribute__((alias("stat")));
EXPORTED int lstat64(const char *path, struct stat64 *to) __attribute__((alias("lstat")));
EXPORTED int fstatat64(int at, const char *path, struct stat64 *to, int flags) __attribute__((alias("fstatat")));

static int is_old(int version) {
    if (version == OLD_VERSION || version == 0) return 1;
    errno = EINVAL;
    return 0;
}

EXPORTED int __xstat(int version, const char *path, struct stat *to) {
    return is_old(version) ? stat_at(AT_FDCWD, path, to, 0) : -1;
}

EXPORTED int __lxstat(int version, const char *path, struct stat *to) {
    return is_old(version) ? stat_at(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW) : -1;
}

EXPORTED int __fxstatat(int version, int at, const char *path, struct stat *to, int flags) {
    return is_old(version) ? stat_at(at, path, to, flags) : -1;
}

EXPORTED int __fxstat(int version, int fd, struct stat *to) {
    return is_old(version) ? fstat(fd, to) : -1;
}

EXPORTED int __fxstat64(int version, int fd, struct stat64 *to) __attribute__((alias("__fxstat")));
EXPORTED int __xstat64(int version, const char *path, struct stat64 *to) __attribute__((alias("__xstat")));
EXPORTED int __lxstat64(int version, const char *path, struct stat64 *to) __attribute__((alias("__lxstat")));
EXPORTED int __fxstatat64(int version, int at, const char *path, struct stat64 *to, int flags)
    __attribute__((alias("__fxstatat")));

EXPORTED int statx(int at, const char *path, int flags, unsigned mask, struct statx *to) {
    struct base base;
    // What is asked for without these has the kernel or the mount say more, or less.
    const int known = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | EMPTY_PATH;
    const struct name_calls *calls = flags & ~known ? NULL : calls_for(at, path, &base);
    int looked = calls == NULL ? KERNEL : calls->look(&base, path, flags, to);
    if (looked != KERNEL) return looked;
    find_statx();
    return own_statx(at, path, flags, mask, to);
}

// `KERNEL`, or the answer.
static int may_at(int at, const char *path, int mode, int flags) {
    struct base base;
    const struct name_calls *calls = flags & ~(AT_EACCESS | AT_SYMLINK_NOFOLLOW) ? NULL : calls_for(at, path, &base);
    return calls == NULL ? KERNEL : calls->may(&base, path, mode, flags);
}

EXPORTED int access(const char *path, int mode) {
    int answer = may_at(AT_FDCWD, path, mode, 0);
    if (answer != KERNEL) return answer;
    find_access();
    return own_access(path, mode);
}

EXPORTED int faccessat(int at, const char *path, int mode, int flags) {
    int answer = may_at(at, path, mode, flags);
    if (answer != KERNEL) return answer;
    find_faccessat();
    return own_faccessat(at, path, mode, flags);
}

EXPORTED int eaccess(const char *path, int mode) {
    int answer = may_at(AT_FDCWD, path, mode, AT_EACCESS);
    if (answer != KERNEL) return answer;
    find_eaccess();
    return own_eaccess(path, mode);
}

EXPORTED int euidaccess(const char *path, int mode) __attribute__((alias("eaccess")));

static ssize_t read_link_at(int at, const char *path, char *to, size_t room) {
    struct base base;
    const struct name_calls *calls = calls_for(at, path, &base);
    return calls == NULL ? KERNEL : calls->read_link(&base, path, to, room);
}

EXPORTED ssize_t readlink(const char *path, char *to, size_t room) {
    ssize_t read = read_link_at(AT_FDCWD, path, to, room);
    if (read != KERNEL) return read;
    find_readlink();
    return own_readlink(path, to, room);
}

EXPORTED ssize_t readlinkat(int at, const char *path, char *to, size_t room) {
    ssize_t read = read_link_at(at, path, to, room);
    if (read != KERNEL) return read;
    find_readlinkat();
    return own_readlinkat(at, path, to, room);
}

EXPORTED ssize_t __readlink_chk(const char *path, char *to, size_t room, size_t there) {
    ssize_t read = room <= there ? read_link_at(AT_FDCWD, path, to, room) : KERNEL;
    if (read != KERNEL) return read;
    find___readlink_chk();
    return own___readlink_chk(path, to, room, there);
}

EXPORTED ssize_t __readlinkat_chk(int at, const char *path, char *to, size_t room, size_t there) {
    ssize_t read = room <= there ? read_link_at(at, path, to, room) : KERNEL;
    if (read != KERNEL) return read;
    find___readlinkat_chk();
    return own___readlinkat_chk(at, path, to, room, there);
}

static ssize_t attribute_of(const char *path, int follows, const char *name, char *to, size_t room) {
    struct base base;
    const struct name_calls *calls = calls_for(AT_FDCWD, path, &base);
    return calls == NULL ? KERNEL : calls->attribute(&base, path, follows, name, to, room);
}

static int is_given(const char *name) {
    return name != NULL;
}

EXPORTED ssize_t getxattr(const char *path, const char *name, void *to, size_t room) {
    ssize_t read = is_given(name) ? attribute_of(path, 1, name, to, room) : KERNEL;
    if (read != KERNEL) return read;
    find_getxattr();
    return own_getxattr(path, name, to, room);
}

EXPORTED ssize_t lgetxattr(const char *path, const char *name, void *to, size_t room) {
    ssize_t read = is_given(name) ? attribute_of(path, 0, name, to, room) : KERNEL;
    if (read != KERNEL) return read;
    find_lgetxattr();
    return own_lgetxattr(path, name, to, room);
}

EXPORTED ssize_t listxattr(const char *path, char *to, size_t room) {
    ssize_t read = attribute_of(path, 1, NULL, to, room);
    if (read != KERNEL) return read;
    find_listxattr();
    return own_listxattr(path, to, room);
}

EXPORTED ssize_t llistxattr(const char *path, char *to, size_t room) {
    ssize_t read = attribute_of(path, 0, NULL, to, room);
    if (read != KERNEL) return read;
    find_llistxattr();
    return own_llistxattr(path, to, room);
}

static int make_at(int at, const char *path, mode_t mode, const char *target) {
    struct base base;
    const struct name_calls *calls = calls_for(at, path, &base);
    return calls == NULL ? KERNEL : calls->make(&base, path, mode, target);
}

EXPORTED int mkdir(const char *path, mode_t mode) {
    int made = make_at(AT_FDCWD, path, mode, NULL);
    if (made != KERNEL) return made;
    find_mkdir();
    return own_mkdir(path, mode);
}

EXPORTED int mkdirat(int at, const char *path, mode_t mode) {
    int made = make_at(at, path, mode, NULL);
    if (made != KERNEL) return made;
    find_mkdirat();
    return own_mkdirat(at, path, mode);
}

static int link_at(const char *target, int at, const char *path) {
    return target == NULL ? KERNEL : make_at(at, path, 0, target);
}

EXPORTED int symlink(const char *target, const char *path) {
    int made = link_at(target, AT_FDCWD, path);
    if (made != KERNEL) return made;
    find_symlink();
    return own_symlink(target, path);
}

EXPORTED int symlinkat(const char *target, int at, const char *path) {
    int made = link_at(target, at, path);
    if (made != KERNEL) return made;
    find_symlinkat();
    return own_symlinkat(target, at, path);
}

static DIR *open_at(int at, const char *path) {
    struct base base;
    const struct name_calls *calls = calls_for(at, path, &base);
    return calls == NULL ? (DIR *)KERNEL : calls->open(&base, path);
}

EXPORTED DIR *opendir(const char *path) {
    DIR *opened = open_at(AT_FDCWD, path);
    if (opened != (DIR *)KERNEL) return opened;
    find_opendir();
    return own_opendir(path);
}

EXPORTED DIR *fdopendir(int fd) {
    DIR *opened = fd < 0 ? (DIR *)KERNEL : open_at(fd, "");
    if (opened != (DIR *)KERNEL) return opened;
    find_fdopendir();
    return own_fdopendir(fd);
}

EXPORTED struct dirent *readdir(DIR *directory) {
    const struct name_calls *calls = calls_of(directory);
    if (calls != NULL) return (struct dirent *)calls->next(directory);
    find_readdir();
    return own_readdir(directory);
}

EXPORTED int readdir_r(DIR *directory, struct dirent *entry, struct dirent **result) {
    const struct name_calls *calls = calls_of(directory);
    if (calls == NULL) {
        find_readdir_r();
        return own_readdir_r(directory, entry, result);
    }
    int before = errno, failed = 0;
    errno = 0;
    const struct dirent64 *found = calls->next(directory);
    *result = NULL;
    if (found == NULL) {
        failed = errno;
    } else {
        for (size_t at = 0; at < found->d_reclen; at++) ((char *)entry)[at] = ((const char *)found)[at];
        *result = entry;
    }
    errno = before;
    return failed;
}

EXPORTED struct dirent64 *readdir64(DIR *directory) __attribute__((alias("readdir")));
EXPORTED int readdir64_r(DIR *directory, struct dirent64 *entry, struct dirent64 **result)
    __attribute__((alias("readdir_r")));

EXPORTED int closedir(DIR *directory) {
    const struct name_calls *calls = calls_of(directory);
    if (calls != NULL) return calls->close(directory);
    find_closedir();
    return own_closedir(directory);
}

EXPORTED void rewinddir(DIR *directory) {
    const struct name_calls *calls = calls_of(directory);
    if (calls != NULL) {
        calls->go(directory, 0);
        return;
    }
    find_rewinddir();
    own_rewinddir(directory);
}

EXPORTED void seekdir(DIR *directory, long place) {
    const struct name_calls *calls = calls_of(directory);
    if (calls != NULL) {
        calls->go(directory, place);
        return;
    }
    find_seekdir();
    own_seekdir(directory, place);
}

EXPORTED long telldir(DIR *directory) {
    const struct name_calls *calls = calls_of(directory);
    if (calls != NULL) return calls->place(directory);
    find_telldir();
    return own_telldir(directory);
}

EXPORTED int dirfd(DIR *directory) {
    const struct name_calls *calls = calls_of(directory);
    if (calls != NULL) return calls->descriptor(directory);
    find_dirfd();
    return own_dirfd(directory);
}
