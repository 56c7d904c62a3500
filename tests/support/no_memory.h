/* cJSON finds no memory for one of its blocks, as malloc would say it. For tests in one process. */
#pragma once

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>

static int blocks_before;

static void *all_but_one(size_t size)
{
    if (blocks_before-- != 0)
        return malloc(size);
    errno = ENOMEM;
    return NULL;
}

/* The nth block that it asks for from here on, counted from 0, is not to be had. */
static void lose_block(int n)
{
    blocks_before = n;
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = all_but_one, .free_fn = free});
}
static void lose_none(void)
{
    cJSON_InitHooks(NULL);
}
