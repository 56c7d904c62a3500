/* Shared code of `moefarm why` for a farm's task and for a local device. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "cli/support/cli.h"

/* Returns true if a kernel matches the user's pattern. A pattern that is a family name, current or old,
 * matches all kernels of the family. The `kernel` of a rejection may itself be a pattern for several kernels:
 * "tile_s1_m128*", or "*" for the whole family. */
bool mf_why_match(const char *pattern, const char *family, const char *kernel);

/* The kernel name most similar to a pattern that matches no kernel. */
struct mf_why_similar {
    char name[256]; /* "family:kernel"; "" if no name is similar */
    size_t distance;
};
void mf_why_compare(struct mf_why_similar *best, const char *pattern, const char *family, const char *kernel);
/* Prints that no kernel matches the pattern, and the most similar name. Returns the exit code. */
int mf_why_no_match(const struct mf_why_similar *best, const char *pattern);

struct mf_why_local {
    const char *device;   /* "cpu:0", "sim:gfx942/304:0" */
    const char *families; /* comma-separated list; NULL: all families enabled by default */
};
/* Explains why a kernel is not a candidate, without a farm: asks the families of this build about a shape on
 * a local device. `word` is a shape with at least the five sizes. If `kernel` is NULL, prints all rejections.
 * Returns the exit code. */
int mf_why_local(struct mf_cli *cli, const struct mf_why_local *where, const char *word, const char *kernel);
