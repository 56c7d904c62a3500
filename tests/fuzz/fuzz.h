/* Shared by all fuzz targets: the entry point, and an assertion that is enabled in every build. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Aborts if the check fails. The text of errno is meaningful only if the check is about a failed call. */
#define MF_MUST(truth)                                                                                      \
    do {                                                                                                    \
        if (!(truth)) {                                                                                     \
            fprintf(stderr, "check failed: %s:%d: %s (%s)\n", __FILE__, __LINE__, #truth, strerror(errno)); \
            abort();                                                                                        \
        }                                                                                                   \
    } while (0)
