/* Takes a test's folder away with all that is in it. */
#pragma once

#include <ftw.h>
#include <stdio.h>

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* Links are removed and not followed. 0; otherwise something is left. */
static inline int remove_tree(const char *folder)
{
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
