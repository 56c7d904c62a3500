/* Shared code of the release commands. */
#pragma once

#include "cli/support/api.h"

#define MF_RELEASE_WORD_MAX 63 /* maximum bytes of a release or channel name */
#define MF_RELEASE_PATH_MAX 512

/* Resolves a release's number or name to its number. */
int mf_release_find(struct mf_cli *cli, const char *word, int64_t *ret);
/* Compares a reply with the farm's record of the release that the reply names, so that no cache or proxy can
 * replace it. ret_release: the record, or NULL. Prints its own error message and returns the exit code, or 0.
 */
int mf_release_check_reply(struct mf_cli *cli, const struct mf_http_reply *reply, cJSON **ret_release);
/* Prints the differences by key, at most `lines_max` lines for each kind of difference. */
void mf_release_print_diff(const cJSON *diff, int lines_max);

/* release show, release diff and release history */
int mf_release_show(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_release_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_release_history(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
