// Uses the intercepted functions, built for another C library than the system's. Its only argument is a file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(condition)                                                                                                \
    do {                                                                                                                \
        if (!(condition)) {                                                                                             \
            perror(#condition);                                                                                         \
            return 1;                                                                                                   \
        }                                                                                                               \
    } while (0)

int main(int count, char **arguments) {
    char bytes[64];
    CHECK(count == 2);
    int fd = open(arguments[1], O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    CHECK(write(fd, "hello, ", 7) == 7);
    struct iovec pieces[] = {{"hel", 3}, {"lo", 2}};
    CHECK(writev(fd, pieces, 2) == 5);
    CHECK(pread(fd, bytes, sizeof bytes, 0) == 12);
    CHECK(dup2(fd, 42) == 42);
    CHECK(close(fd) == 0);
    CHECK(read(42, bytes, sizeof bytes) == 0);
    char *mapped = mmap(NULL, 12, PROT_READ, MAP_SHARED, 42, 0);
    CHECK(mapped != MAP_FAILED && memcmp(mapped, "hello, hello", 12) == 0);
    FILE *file = fopen(arguments[1], "r");
    CHECK(file != NULL && freopen(arguments[1], "r", file) == file);
    CHECK(fgets(bytes, sizeof bytes, file) != NULL && fclose(file) == 0);
    printf("%zu bytes: %s\n", strlen(bytes), bytes);
    return 0;
}
