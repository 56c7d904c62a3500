/* What every fuzz target has: the entry, and a check that stays on in every build and says what it found. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* errno's text tells only of a call that just gave an error. */
#define MF_MUST(truth)                                                                                       \
    do {                                                                                                     \
        if (!(truth)) {                                                                                      \
            fprintf(stderr, "does not hold: %s:%d: %s (%s)\n", __FILE__, __LINE__, #truth, strerror(errno)); \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)
