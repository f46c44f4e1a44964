/* Which calls tell that what was written is lost: told PATH fsync|late|msync. Prints the errno of each, 0 for success.
 * fsync: pwrite, fsync, fsync, close.  late: pwrite until it fails, fsync, fsync, close.  msync: msync, fsync, fsync, close. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 300000, TRIES = 400, PAUSE_MICROS = 100000 };

static void tell(int result)
{
    printf("%d ", result < 0 ? errno : 0);
}

int main(int count, char **arguments)
{
    static char data[SIZE];
    if (count != 3)
        return 1;
    int file = open(arguments[1], O_RDWR);
    if (file < 0)
        return 2;
    memset(data, 'x', SIZE);
    if (strcmp(arguments[2], "msync") == 0) {
        char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map == MAP_FAILED)
            return 3;
        memcpy(map, data, SIZE);
        tell(msync(map, SIZE, MS_SYNC));
    } else {
        ssize_t written = pwrite(file, data, SIZE, 0);
        for (int tries = 0; strcmp(arguments[2], "late") == 0 && written >= 0 && tries < TRIES; tries++) {
            usleep(PAUSE_MICROS);
            written = pwrite(file, data, 1, 0);
        }
        tell(written < 0 ? -1 : 0);
    }
    tell(fsync(file));
    tell(fsync(file));
    tell(close(file));
    return 0;
}
