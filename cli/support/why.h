/* Shared code of `moefarm why` for a farm's task and for a local device. */
#pragma once

#include <stdbool.h>

#include "cli/support/cli.h"

/* True if a kernel matches the pattern that the user gave. A family name, current or old, matches all kernels
 * of the family. In rejections, `kernel` may itself be a pattern: "tile_s1_m128*" matches each kernel that it
 * covers, and
 * "*" covers the whole family. */
bool mf_why_match(const char *pattern, const char *family, const char *kernel);

struct mf_why_local {
    const char *device;   /* "cpu:0", "sim:gfx942/304:0" */
    const char *families; /* comma-separated list; NULL: all families enabled by default */
};
/* Explains why a kernel is not a candidate, without a farm: queries this build's families about a shape on a
 * local device. `word` is a shape with at least the five sizes. kernel may be NULL. Returns the exit code. */
int mf_why_local(struct mf_cli *cli, const struct mf_why_local *where, const char *word, const char *kernel);
