/* Option --aiter-dir: the kernel lists of the user's own AITER, in place of the built-in ones. */
#pragma once

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "kernels/aiter/aiter_lists.h"

struct mf_aiter_dir {
    const char *path; /* set by the option; NULL: the built-in lists */
    struct mf_buf text;
    struct mf_aiter_lists lists;
};

#define MF_AITER_DIR_OPTION(d)                                                            \
    {                                                                                     \
        .name = "aiter-dir", .type = MF_OPT_TEXT, .value = &(d).path, .argument = "PATH", \
        .help = "folder of your AITER, whose kernel lists replace the built-in ones"      \
    }

/* Reads the lists if the option was given. Returns 0, or an exit status after printing the error. */
int mf_aiter_dir_read(const char *command, struct mf_aiter_dir *d);
void mf_aiter_dir_release(struct mf_aiter_dir *d);
/* Returns the lists to use. They live as long as *d. */
const struct mf_aiter_lists *mf_aiter_dir_lists(const struct mf_aiter_dir *d);
