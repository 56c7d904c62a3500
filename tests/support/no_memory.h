/* Makes one allocation of cJSON fail with ENOMEM. Use it only in tests that do not fork. */
#pragma once

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>

static int allocations_left;

static void *failing_malloc(size_t size)
{
    if (allocations_left-- != 0)
        return malloc(size);
    errno = ENOMEM;
    return NULL;
}

/* Makes allocation number n of cJSON fail, counted from now on. The next allocation has number 0. */
static void fail_allocation(int n)
{
    allocations_left = n;
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = failing_malloc, .free_fn = free});
}
static void restore_allocation(void)
{
    cJSON_InitHooks(NULL);
}
