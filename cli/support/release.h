/* What the commands about releases share. */
#pragma once

#include "cli/support/api.h"

#define MF_RELEASE_WORD_MAX 63 /* bytes of a release's or a channel's name */
#define MF_RELEASE_PATH_MAX 512

/* A release's number, from its number or its name. */
int mf_release_find(struct mf_cli *cli, const char *word, int64_t *ret);
/* Key by key, at most so many lines of each kind. */
void mf_release_print_diff(const cJSON *diff, int lines_max);

/* release show, release diff, release history */
int mf_release_show(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_release_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_release_history(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
