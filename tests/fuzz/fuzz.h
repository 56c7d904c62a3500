/* What every fuzz target has: the entry, and a check that stays on in every build. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MF_MUST(truth) \
    do {               \
        if (!(truth))  \
            abort();   \
    } while (0)
