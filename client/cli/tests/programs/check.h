// Ends a program with the place and the reason where what it expects isn't so.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                            \
    do {                                                                                                            \
        if (!(condition)) {                                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));                    \
            exit(1);                                                                                                \
        }                                                                                                           \
    } while (0)
