/* Arrays that grow by doubling. */
#pragma once

#include <stddef.h>

/* Room for one more item behind the n of an array of *cap. array: the address of the pointer to the first item, each of size
 * bytes. -ENOMEM: the array is as it was. */
int mf_array_grow(void *array, size_t n, size_t *cap, size_t size);
