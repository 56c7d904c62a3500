/* What `moefarm why` of a farm's task and of this machine have in common. */
#pragma once

#include <stdbool.h>

#include "cli/support/cli.h"

/* Is that the kernel that was asked about? A family's name stands for all of its kernels. A rejection may itself be
 * of a pattern, "tile_s1_m128*": it answers for each kernel that it fits; one of "*" is about its family. */
bool mf_why_asked(const char *pattern, const char *family, const char *kernel);

struct mf_why_local {
    const char *device;   /* "cpu:0", "sim:gfx942/304:0" */
    const char *families; /* comma list; NULL: all that need not be named */
};
/* Why not here: asks this build's families about a shape on a device of this machine, without a farm. word: a shape of which
 * at least the five sizes are given; kernel may be NULL. An exit code, after a message where it is not fine. */
int mf_why_local(struct mf_cli *cli, const struct mf_why_local *where, const char *word, const char *kernel);
