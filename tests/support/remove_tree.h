/* Removes a folder with its contents. */
#pragma once

#include <ftw.h>
#include <stdio.h>

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* Removes a folder with its contents, without following symbolic links. Returns 0 on success. */
static inline int remove_tree(const char *folder)
{
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
