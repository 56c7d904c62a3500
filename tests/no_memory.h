/* cJSON finds no memory, as malloc would say it. For tests in one process. */
#pragma once

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>

static int blocks_left;

static void *few_blocks(size_t size)
{
    if (blocks_left-- > 0)
        return malloc(size);
    errno = ENOMEM;
    return NULL;
}

/* From here on it has so many blocks and no more. */
static void leave_blocks(int n)
{
    blocks_left = n;
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = few_blocks, .free_fn = free});
}
static void leave_all_blocks(void)
{
    cJSON_InitHooks(NULL);
}
