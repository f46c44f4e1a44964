// Does with files what programs do, and prints what it sees: the same on every file system, whichever way the data goes. Its only
// argument is an empty directory; as `intercepted exec FD` it goes on with an inherited descriptor.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char *self;

static void fill(char *bytes, size_t length, unsigned seed) {
    for (size_t at = 0; at < length; at++) bytes[at] = (char)(seed + at * 31 + at / 4096);
}

static unsigned long sum(const char *bytes, size_t length) {
    unsigned long found = 5381;
    for (size_t at = 0; at < length; at++) found = found * 33 + (unsigned char)bytes[at];
    return found;
}

static int opened(const char *name, int flags) {
    int fd = open(name, flags, 0644);
    CHECK(fd >= 0);
    return fd;
}

// Prints size and content of a file, as the kernel tells it, as a fresh descriptor reads it and as stdio does.
static void show(const char *name) {
    struct stat found;
    CHECK(stat(name, &found) == 0);
    char *bytes = malloc((size_t)found.st_size + 10);
    int fd = opened(name, O_RDONLY);
    ssize_t count = read(fd, bytes, (size_t)found.st_size + 10);
    CHECK(close(fd) == 0);
    unsigned long direct = sum(bytes, (size_t)count);
    FILE *file = fopen(name, "r");
    CHECK(file != NULL);
    size_t buffered = fread(bytes, 1, (size_t)found.st_size + 10, file);
    CHECK(fclose(file) == 0);
    printf("%s: %ld bytes, read %zd %lx, stdio %zu %lx\n", name, (long)found.st_size, count, direct, buffered,
           sum(bytes, buffered));
    free(bytes);
}

static void plain(void) {
    static char bytes[300000], back[300000];
    fill(bytes, sizeof bytes, 1);
    int fd = opened("plain", O_RDWR | O_CREAT | O_EXCL);
    CHECK(write(fd, bytes, 1000) == 1000);
    CHECK(lseek(fd, 0, SEEK_CUR) == 1000 && lseek(fd, 0, SEEK_END) == 1000);
    CHECK(write(fd, bytes + 1000, 200000) == 200000);
    struct stat found;
    CHECK(fstat(fd, &found) == 0 && found.st_size == 201000);
    CHECK(pwrite(fd, "hole", 4, 280000) == 4 && lseek(fd, 0, SEEK_CUR) == 201000);
    CHECK(pread(fd, back, 300000, 0) == 280004 && memcmp(back, bytes, 201000) == 0 && back[279999] == 0);
    CHECK(read(fd, back, 100) == 100 && back[0] == 0 && lseek(fd, 0, SEEK_CUR) == 201100);
    CHECK(lseek(fd, 280000, SEEK_SET) == 280000 && read(fd, back, 100) == 4 && memcmp(back, "hole", 4) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 280004 && read(fd, back, 100) == 0 && read(fd, back, 0) == 0);
    CHECK(lseek(fd, 1000000, SEEK_SET) == 1000000 && read(fd, back, 10) == 0 && lseek(fd, 0, SEEK_CUR) == 1000000);
    CHECK(ftruncate(fd, 5000) == 0 && pread(fd, back, 10000, 4000) == 1000);
    CHECK(ftruncate(fd, 9000) == 0 && pread(fd, back, 10000, 4000) == 5000 && back[1000] == 0);
    CHECK(lseek(fd, -10, SEEK_END) == 8990 && write(fd, bytes, 20) == 20);
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && fstat(fd, &found) == 0 && found.st_size == 9010);
    CHECK(pread(fd, back, 10, -1) == -1 && errno == EINVAL);
    CHECK(close(fd) == 0 && read(fd, back, 1) == -1 && errno == EBADF);
    fd = opened("plain", O_RDONLY);
    CHECK(write(fd, "x", 1) == -1 && errno == EBADF && close(fd) == 0);
    fd = opened("plain", O_WRONLY);
    CHECK(read(fd, back, 1) == -1 && errno == EBADF && close(fd) == 0);
    errno = 77;
    fd = opened("plain", O_RDONLY);
    CHECK(read(fd, back, 10) == 10 && errno == 77 && close(fd) == 0);
    show("plain");
    fd = opened("plain", O_WRONLY | O_TRUNC);
    CHECK(write(fd, "short", 5) == 5 && close(fd) == 0);
    show("plain");
}

static void vectors(void) {
    char one[3000], two[5000], three[1];
    fill(one, sizeof one, 2), fill(two, sizeof two, 3), three[0] = 'z';
    struct iovec pieces[4] = {{one, sizeof one}, {NULL, 0}, {two, sizeof two}, {three, 1}};
    int fd = opened("vectors", O_RDWR | O_CREAT);
    CHECK(writev(fd, pieces, 4) == 8001 && pwritev(fd, pieces, 4, 10000) == 8001);
    CHECK(pwritev2(fd, pieces, 4, 20000, 0) == 8001 && lseek(fd, 0, SEEK_CUR) == 8001);
    memset(one, 0, sizeof one), memset(two, 0, sizeof two), three[0] = 0;
    CHECK(preadv(fd, pieces, 4, 10000) == 8001 && three[0] == 'z');
    printf("vectors: %lx %lx\n", sum(one, sizeof one), sum(two, sizeof two));
    CHECK(lseek(fd, 7000, SEEK_SET) == 7000 && readv(fd, pieces, 4) == 8001);
    printf("vectors: %lx %lx\n", sum(one, sizeof one), sum(two, sizeof two));
    CHECK(preadv2(fd, pieces, 4, 27000, 0) == 1001);
    struct iovec same[2] = {{one, 100}, {one, 100}};
    CHECK(preadv(fd, same, 2, 0) == 200);
    printf("vectors: %lx\n", sum(one, 100));
    volatile int negative = -1;
    CHECK(readv(fd, pieces, negative) == -1 && errno == EINVAL && close(fd) == 0);
    show("vectors");
}

static void append(void) {
    int one = opened("append", O_WRONLY | O_CREAT | O_APPEND), two = opened("append", O_RDWR | O_APPEND);
    CHECK(write(one, "first ", 6) == 6 && write(two, "second ", 7) == 7 && write(one, "third ", 6) == 6);
    CHECK(lseek(one, 0, SEEK_CUR) == 19 && lseek(two, 0, SEEK_CUR) == 13);
    // Linux appends here, too.
    CHECK(pwrite(two, "fourth ", 7, 0) == 7);
    char back[100];
    CHECK(pread(two, back, 100, 0) == 26 && memcmp(back, "first second third fourth ", 26) == 0);
    int flags = fcntl(two, F_GETFL);
    CHECK(fcntl(two, F_SETFL, flags & ~O_APPEND) == 0 && pwrite(two, "FIRST", 5, 0) == 5);
    CHECK(fcntl(two, F_SETFL, flags) == 0 && write(two, "fifth", 5) == 5);
    FILE *file = fopen("append", "a");
    CHECK(file != NULL && fprintf(file, " sixth") == 6 && fclose(file) == 0);
    CHECK(write(one, " seventh", 8) == 8 && close(one) == 0 && close(two) == 0);
    show("append");
}

static void duplicates(void) {
    char back[100];
    int fd = opened("duplicates", O_RDWR | O_CREAT), copy = dup(fd), other = opened("duplicates", O_RDWR);
    CHECK(write(fd, "0123456789", 10) == 10 && write(copy, "abc", 3) == 3 && lseek(fd, 0, SEEK_CUR) == 13);
    CHECK(read(other, back, 100) == 13 && lseek(other, 0, SEEK_SET) == 0);
    CHECK(close(fd) == 0 && write(copy, "def", 3) == 3);
    int high = fcntl(copy, F_DUPFD, 200);
    CHECK(high >= 200 && write(high, "ghi", 3) == 3 && lseek(copy, 0, SEEK_CUR) == 19);
    // A number gets another file.
    int null = opened("/dev/zero", O_RDONLY);
    CHECK(dup2(null, high) == high && read(high, back, 5) == 5 && back[4] == 0 && close(null) == 0);
    CHECK(dup3(other, high, O_CLOEXEC) == high && read(high, back, 100) == 19 && read(other, back, 1) == 0);
    CHECK(dup2(copy, copy) == copy && write(copy, "jkl", 3) == 3 && read(other, back, 5) == 3);
    CHECK(close(copy) == 0 && close(other) == 0 && close(high) == 0);
    show("duplicates");
}

static void children(void) {
    int fd = opened("children", O_RDWR | O_CREAT), status;
    CHECK(write(fd, "parent ", 7) == 7);
    for (int number = 0; number < 3; number++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char back[20];
            CHECK(write(fd, "child ", 6) == 6 && pread(fd, back, 7, 0) == 7 && memcmp(back, "parent ", 7) == 0);
            int own = opened("by-child", O_WRONLY | O_CREAT | O_APPEND);
            CHECK(write(own, "child", 5) == 5 && close(own) == 0);
            _exit(number);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == number);
        CHECK(write(fd, "parent ", 7) == 7);
    }
    // Two write at the offset that they share.
    pid_t pair[2];
    for (int number = 0; number < 2; number++) {
        pair[number] = fork();
        if (pair[number] == 0) {
            for (int line = 0; line < 50; line++) CHECK(write(fd, number ? "one line\n" : "two line\n", 9) == 9);
            _exit(0);
        }
    }
    for (int number = 0; number < 2; number++) CHECK(waitpid(pair[number], &status, 0) > 0 && status == 0);
    char back[2000];
    ssize_t count = pread(fd, back, sizeof back, 0);
    int ones = 0, twos = 0;
    for (ssize_t at = 7 + 3 * 13; at + 9 <= count; at += 9) {
        ones += memcmp(back + at, "one line\n", 9) == 0, twos += memcmp(back + at, "two line\n", 9) == 0;
    }
    printf("children: %zd bytes, %d and %d lines\n", count, ones, twos);
    CHECK(ftruncate(fd, 7 + 3 * 13) == 0 && lseek(fd, 0, SEEK_END) == 46);
    char number[20];
    snprintf(number, sizeof number, "%d", fd);
    for (int shares = 0; shares < 2; shares++) {
        pid_t child = shares ? vfork() : fork();
        if (child == 0) {
            if (shares) write(fd, "before ", 7);
            execl(self, self, "exec", number, (char *)NULL);
            _exit(99);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(write(fd, "end", 3) == 3 && close(fd) == 0);
    show("children");
    show("by-child");
}

static int executed(const char *number) {
    int fd = atoi(number);
    char back[7];
    CHECK(write(fd, "executed ", 9) == 9 && pread(fd, back, 7, 0) == 7 && memcmp(back, "parent ", 7) == 0);
    return 0;
}

static void mapped(void) {
    char bytes[20000], back[20000];
    fill(bytes, sizeof bytes, 4);
    int fd = opened("mapped", O_RDWR | O_CREAT);
    CHECK(write(fd, bytes, 4096) == 4096);
    FILE *file = fopen("mapped", "r");
    CHECK(file != NULL && fread(back, 1, sizeof back, file) == 4096 && fclose(file) == 0);
    fill(bytes, sizeof bytes, 5);
    CHECK(pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
    char *map = mmap(NULL, sizeof bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && memcmp(map, bytes, sizeof bytes) == 0);
    memcpy(map + 5000, "through the mapping", 19);
    CHECK(pread(fd, back, 19, 5000) == 19 && memcmp(back, "through the mapping", 19) == 0);
    CHECK(pwrite(fd, "through the file", 16, 6000) == 16 && memcmp(map + 6000, "through the file", 16) == 0);
    CHECK(msync(map, sizeof bytes, MS_SYNC) == 0);
    int other = opened("mapped", O_RDONLY);
    CHECK(pread(other, back, sizeof back, 0) == sizeof back && memcmp(map, back, sizeof back) == 0);
    CHECK(close(fd) == 0 && close(other) == 0);
    memcpy(map + 7000, "behind close", 12);
    CHECK(munmap(map, sizeof bytes) == 0);
    show("mapped");
}

static int shared_fd;

static void *writes(void *argument) {
    char bytes[1000], back[1000];
    int number = (int)(intptr_t)argument;
    memset(bytes, 'a' + number, sizeof bytes);
    for (int round = 0; round < 20; round++) {
        CHECK(pwrite(shared_fd, bytes, 1000, (round * 8 + number) * 1000) == 1000);
        CHECK(pread(shared_fd, back, 1000, (round * 8 + number) * 1000) == 1000);
        // Other threads write to the same page.
        CHECK(memcmp(back, bytes, 1000) == 0);
        CHECK(write(shared_fd, "line of a thread", 16) == 16);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    shared_fd = opened("threads", O_RDWR | O_CREAT);
    CHECK(lseek(shared_fd, 200000, SEEK_SET) == 200000);
    for (int number = 0; number < 8; number++) CHECK(pthread_create(&all[number], NULL, writes, (void *)(intptr_t)number) == 0);
    for (int number = 0; number < 8; number++) CHECK(pthread_join(all[number], NULL) == 0);
    CHECK(lseek(shared_fd, 0, SEEK_CUR) == 200000 + 8 * 20 * 16 && close(shared_fd) == 0);
    show("threads");
}

static void standard(void) {
    char back[100];
    FILE *file = fopen("standard", "w+");
    CHECK(file != NULL && fprintf(file, "line %d\n", 1) == 7 && fflush(file) == 0);
    CHECK(write(fileno(file), "past the buffer\n", 16) == 16 && pread(fileno(file), back, 100, 0) == 23);
    CHECK(fseek(file, 0, SEEK_END) == 0 && fprintf(file, "line %d\n", 2) == 7 && ftell(file) == 30);
    CHECK(fflush(file) == 0);
    rewind(file);
    CHECK(fread(back, 1, 100, file) == 30);
    int other = opened("standard", O_WRONLY);
    CHECK(pwrite(other, "LINE", 4, 0) == 4 && close(other) == 0);
    file = freopen("standard", "r", file);
    CHECK(file != NULL && fgets(back, sizeof back, file) != NULL);
    printf("standard: %s", back);
    int number = fileno(file);
    CHECK(fclose(file) == 0);
    // The same number, another file.
    int fd = opened("standard-2", O_RDWR | O_CREAT);
    CHECK(fd == number && write(fd, "other", 5) == 5 && close(fd) == 0);
    show("standard");
    show("standard-2");
}

static void names(void) {
    char back[10];
    int fd = opened("name", O_RDWR | O_CREAT);
    CHECK(write(fd, "before", 6) == 6 && rename("name", "renamed") == 0 && write(fd, " after", 6) == 6);
    show("renamed");
    CHECK(unlink("renamed") == 0 && write(fd, "!", 1) == 1 && pread(fd, back, 10, 7) == 6);
    struct stat found;
    CHECK(fstat(fd, &found) == 0 && found.st_size == 13 && found.st_nlink == 0 && close(fd) == 0);
    CHECK(access("renamed", F_OK) == -1 && errno == ENOENT);
    fd = opened("timed", O_WRONLY | O_CREAT);
    struct timespec times[2] = {{1000000000, 0}, {1234567890, 500}};
    CHECK(write(fd, "timed", 5) == 5 && futimens(fd, times) == 0 && fchmod(fd, 0640) == 0);
    CHECK(fstat(fd, &found) == 0 && found.st_mtim.tv_sec == 1234567890 && close(fd) == 0);
    CHECK(stat("timed", &found) == 0 && found.st_mtim.tv_sec == 1234567890 && found.st_mtim.tv_nsec == 500);
    printf("timed: %o\n", found.st_mode & 07777);
    fd = opened("timed", O_WRONLY);
    CHECK(pwrite(fd, "T", 1, 0) == 1 && fstat(fd, &found) == 0 && found.st_mtim.tv_sec > 1234567890);
    CHECK(close(fd) == 0);
}

static void moved(void) {
    static char bytes[5 << 20], back[5 << 20];
    fill(bytes, sizeof bytes, 6);
    int from = opened("large", O_RDWR | O_CREAT), to = opened("copied", O_RDWR | O_CREAT);
    CHECK(write(from, bytes, sizeof bytes) == sizeof bytes);
    off_t offset = 0;
    while (offset < (off_t)sizeof bytes / 2) CHECK(sendfile(to, from, &offset, sizeof bytes / 2 - (size_t)offset) > 0);
    fill(bytes, sizeof bytes, 7);
    CHECK(pwrite(from, bytes, sizeof bytes, 0) == sizeof bytes);
    off_t place = 0;
    offset = 0;
    while (offset < (off_t)sizeof bytes) CHECK(copy_file_range(from, &offset, to, &place, sizeof bytes - (size_t)offset, 0) > 0);
    CHECK(pread(to, back, sizeof back, 0) == sizeof back && memcmp(bytes, back, sizeof back) == 0);
    CHECK(close(from) == 0 && close(to) == 0);
    show("large");
    show("copied");
    struct rlimit limit = {10000, RLIM_INFINITY}, before;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    limit.rlim_max = before.rlim_max;
    int fd = opened("limited", O_WRONLY | O_CREAT);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0 && write(fd, bytes, 9000) == 9000 && write(fd, bytes, 9000) == 1000);
    CHECK(write(fd, bytes, 1) == -1 && errno == EFBIG && setrlimit(RLIMIT_FSIZE, &before) == 0 && close(fd) == 0);
    show("limited");
}

static void closed(void) {
    int fd = opened("closed", O_WRONLY | O_CREAT);
    CHECK(write(fd, "before", 6) == 6);
    closefrom(3);
    CHECK(write(fd, "x", 1) == -1 && errno == EBADF);
    int again = opened("closed", O_WRONLY | O_APPEND);
    CHECK(again == 3 && write(again, " after", 6) == 6);
    CHECK(close_range(3, ~0U, 0) == 0 && write(again, "x", 1) == -1 && errno == EBADF);
    // As standard output of a program.
    fflush(stdout);
    int out = dup(1);
    fd = opened("output", O_WRONLY | O_CREAT);
    CHECK(dup2(fd, 1) == 1 && close(fd) == 0 && write(1, "written\n", 8) == 8 && printf("printed\n") == 8);
    CHECK(fflush(stdout) == 0 && dup2(out, 1) == 1 && close(out) == 0);
    show("closed");
    show("output");
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "exec") == 0) return executed(argv[2]);
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    plain(), vectors(), append(), duplicates(), children(), mapped(), threads(), standard(), names(), moved(), closed();
    printf("ok\n");
    return 0;
}
