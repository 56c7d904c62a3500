/* Dynamic arrays with geometric growth. */
#pragma once

#include <stddef.h>

/* Makes room for one more item after the first n. array: address of the pointer to the first item; size:
 * bytes per item; *cap: allocated items, updated. Returns -ENOMEM and leaves the array unchanged if the
 * allocation fails. */
int mf_array_grow(void *array, size_t n, size_t *cap, size_t size);
