// Looks at names and adds some while the process of the mount is stopped, which it is between the first and the second line that it
// reads: whatever asked the mount then would never return. Prints what it sees, the same on every file system. Its only argument is an
// empty directory.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "check.h"

static void wait_for_line(const char *said) {
    printf("%s\n", said);
    fflush(stdout);
    for (int got = getchar(); got != '\n'; got = getchar()) CHECK(got != EOF);
}

static void show(const char *how, const char *path, int result, const struct stat *found) {
    if (result != 0) printf("%s %s: %s\n", how, path, strerror(errno));
    else if (S_ISDIR(found->st_mode)) printf("%s %s: %o\n", how, path, found->st_mode);
    else printf("%s %s: %o %ld bytes, %ld names\n", how, path, found->st_mode, (long)found->st_size, (long)found->st_nlink);
}

static void look(int at, const char *path) {
    struct stat found = {0};
    int result = fstatat(at, path, &found, 0);
    show("fstatat", path, result, &found);
    if (at != AT_FDCWD) return;
    result = stat(path, &found);
    show("stat", path, result, &found);
    result = lstat(path, &found);
    show("lstat", path, result, &found);
    struct statx extended = {0};
    if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &extended) == 0) {
        CHECK(stat(path, &found) == 0);
        CHECK(extended.stx_ino == found.st_ino && extended.stx_size == (unsigned long)found.st_size);
        CHECK(extended.stx_mtime.tv_sec == found.st_mtim.tv_sec && extended.stx_mtime.tv_nsec == found.st_mtim.tv_nsec);
        CHECK((extended.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    }
    printf("access %s:", path);
    int modes[] = {F_OK, R_OK, W_OK};
    for (int each = 0; each < 3; each++) printf(" %d", access(path, modes[each]));
    char target[100];
    ssize_t length = readlink(path, target, sizeof target);
    printf(", leads to %.*s", length < 0 ? 0 : (int)length, target);
    char value[100];
    length = getxattr(path, "user.colour", value, sizeof value);
    printf(", is %.*s\n", length < 0 ? 0 : (int)length, value);
}

static int by_name(const void *one, const void *other) {
    return strcmp(*(char *const *)one, *(char *const *)other);
}

static void list(DIR *directory) {
    char *names[100];
    int count = 0;
    long second = 0;
    CHECK(directory != NULL);
    errno = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        CHECK(count < 100 && asprintf(&names[count++], "%s %d", entry->d_name, entry->d_type) > 0);
        if (count == 2) second = telldir(directory);
    }
    CHECK(errno == 0);
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int each = 0; each < count; each++) printf("  %s\n", names[each]);
    int again = 0;
    seekdir(directory, second);
    while (readdir(directory) != NULL) again++;
    CHECK(again == count - 2);
    rewinddir(directory);
    for (again = 0; readdir(directory) != NULL;) again++;
    CHECK(again == count);
}

// What is there before.
static void prepare(const char *folder) {
    CHECK(chdir(folder) == 0);
    CHECK(mkdir("d", 0755) == 0 && mkdir("d/e", 0700) == 0 && mkdir("d/e/deep", 0711) == 0);
    int fd = open("f", O_CREAT | O_WRONLY, 0640);
    CHECK(fd >= 0 && write(fd, "hello", 5) == 5 && close(fd) == 0);
    fd = open("d/e/deep/g", O_CREAT | O_WRONLY, 0604);
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK(link("f", "d/hard") == 0 && symlink("../f", "d/soft") == 0 && symlink("nowhere", "dangling") == 0);
    CHECK(symlink("e", "d/way") == 0 && mkfifo("pipe", 0600) == 0);
    CHECK(setxattr("f", "user.colour", "green", 5, 0) == 0);
}

static void without_the_mount(int d, DIR **kept) {
    const char *paths[] = {"f", "d", "d/", "f/", ".", "d/e/deep/g", "d/hard", "d/soft", "dangling", "d/way/deep", "none", "d/none",
                           "none/below", "pipe", "d/e/../soft", "f/below", "./d//e/./deep", "dangling/"};
    for (size_t each = 0; each < sizeof paths / sizeof *paths; each++) look(AT_FDCWD, paths[each]);
    look(d, "e");
    look(d, "soft");
    look(d, "none");
    CHECK(mkdir("new", 0777) == 0 && mkdir("new", 0777) == -1 && errno == EEXIST);
    CHECK(mkdirat(d, "new", 0700) == 0 && mkdir("new/below/", 0755) == 0);
    CHECK(mkdir("none/new", 0755) == -1 && errno == ENOENT);
    CHECK(mkdir("f/new", 0755) == -1 && errno == ENOTDIR);
    CHECK(symlink("../d", "new/link") == 0 && symlink("x", "f") == -1 && errno == EEXIST);
    CHECK(symlinkat("anywhere", d, "far") == 0);
    look(AT_FDCWD, "new");
    look(AT_FDCWD, "new/link/soft");
    look(d, "new");
    DIR *directory = opendir(".");
    list(directory);
    CHECK(closedir(directory) == 0);
    *kept = opendir("d");
    list(*kept);
    CHECK(opendir("none") == NULL && errno == ENOENT);
    CHECK(opendir("f") == NULL && errno == ENOTDIR);
}

// What the kernel does shows here, and what was done here shows to the kernel.
static void with_the_mount(int d, DIR *kept) {
    struct stat one, other;
    CHECK(fstat(dirfd(kept), &one) == 0 && fstat(d, &other) == 0 && one.st_ino == other.st_ino);
    CHECK(closedir(kept) == 0);
    CHECK(stat("f", &one) == 0 && rename("f", "renamed") == 0);
    CHECK(stat("f", &other) == -1 && errno == ENOENT);
    CHECK(stat("renamed", &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev);
    CHECK(rename("d/e", "moved") == 0 && stat("d/e/deep", &other) == -1 && errno == ENOENT);
    CHECK(stat("moved/deep/g", &other) == 0 && stat("d/way/deep", &other) == -1 && errno == ENOENT);
    CHECK(fstatat(d, "../moved/deep", &other, 0) == 0);
    CHECK(unlink("d/hard") == 0 && lstat("d/hard", &other) == -1 && errno == ENOENT);
    CHECK(stat("renamed", &other) == 0 && other.st_nlink == 1);
    CHECK(rmdir("new/below") == 0 && mkdir("new/below", 0700) == 0 && rmdir("new/below") == 0);
    CHECK(access("new/below", F_OK) == -1 && errno == ENOENT);
    int fd = open("renamed", O_RDWR | O_APPEND);
    CHECK(fd >= 0 && write(fd, " and more", 9) == 9);
    CHECK(stat("renamed", &other) == 0 && other.st_size == 14);
    CHECK(fchmod(fd, 0600) == 0 && stat("renamed", &other) == 0 && (other.st_mode & 07777) == 0600);
    struct timespec times[2] = {{.tv_sec = 1000000000, .tv_nsec = 5}, {.tv_sec = 1000000001, .tv_nsec = 6}};
    CHECK(futimens(fd, times) == 0 && stat("renamed", &other) == 0);
    CHECK(other.st_mtim.tv_sec == 1000000001 && other.st_mtim.tv_nsec == 6 && other.st_atim.tv_nsec == 5);
    CHECK(ftruncate(fd, 3) == 0 && stat("renamed", &other) == 0 && other.st_size == 3);
    CHECK(unlink("renamed") == 0 && stat("renamed", &other) == -1 && fstat(fd, &other) == 0 && other.st_nlink == 0);
    CHECK(close(fd) == 0);
    // A directory that is no more what it was.
    CHECK(chdir("moved") == 0 && rename("../moved", "../elsewhere") == 0 && stat("deep/g", &other) == 0);
    CHECK(stat("../elsewhere/deep", &other) == 0 && stat("../moved", &other) == -1 && errno == ENOENT);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(stat("deep/g", &other) == 0 && mkdir("child", 0755) == 0 ? 0 : 1);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && stat("child", &other) == 0);
    DIR *given = fdopendir(openat(d, ".", O_RDONLY | O_DIRECTORY));
    list(given);
    CHECK(closedir(given) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    umask(022);
    prepare(arguments[1]);
    int d = open("d", O_RDONLY | O_DIRECTORY);
    struct stat found;
    DIR *kept = NULL;
    CHECK(d >= 0 && stat("f", &found) == 0);
    wait_for_line("prepared");
    alarm(60);
    without_the_mount(d, &kept);
    alarm(0);
    wait_for_line("looked");
    with_the_mount(d, kept);
    printf("ok\n");
    return 0;
}
