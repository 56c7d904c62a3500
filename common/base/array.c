#include "common/base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CAP_FIRST 64

int mf_array_grow(void *array, size_t n, size_t *cap, size_t size)
{
    void *items;
    if (n < *cap)
        return 0;
    size_t more = *cap ? *cap * 2 : CAP_FIRST;
    memcpy(&items, array, sizeof(items)); /* memcpy, because the pointer's type is unknown here */
    items = reallocarray(items, more, size);
    if (!items)
        return -ENOMEM;
    memcpy(array, &items, sizeof(items));
    *cap = more;
    return 0;
}
