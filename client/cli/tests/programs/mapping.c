/* Checks a shared writable mapping of a file: mapping PATH. Exits with the number of the step that failed. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 300, SIZE = PAGE * PAGES };

int main(int count, char **arguments)
{
    if (count != 2)
        return 1;
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, SIZE) != 0)
        return 2;
    char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        return 3;
    for (int page = 0; page < PAGES; page++)
        memset(map + (long)page * PAGE, 'a' + page % 26, PAGE);
    /* What is mapped and what is read are one. */
    char byte;
    if (pread(file, &byte, 1, 27L * PAGE + 5) != 1 || byte != 'b')
        return 4;
    if (pwrite(file, "!", 1, 28L * PAGE) != 1 || map[28L * PAGE] != '!')
        return 5;
    if (msync(map, SIZE, MS_SYNC) != 0)
        return 6;
    /* After msync a second mapping, private and from another descriptor, sees the same. */
    int again = open(arguments[1], O_RDONLY);
    char *view = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, again, 0);
    if (view == MAP_FAILED || memcmp(map, view, SIZE) != 0)
        return 7;
    /* A page made dirty last is written by munmap and close. */
    map[SIZE - 1] = '#';
    if (munmap(map, SIZE) != 0 || munmap(view, SIZE) != 0 || close(again) != 0 || close(file) != 0)
        return 8;
    return 0;
}
