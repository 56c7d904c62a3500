/* moefarm pull --format vllm or sglang: updates a folder of configuration files to the approved release of a
 * channel. The folder's file moefarm.json records the files that pull has written, with their hashes. Without
 * --force, pull replaces and removes only these files, and only if they are unchanged. */
#pragma once

#include "cli/support/cli.h"
#include "cli/support/model_arg.h"
#include "common/table/triton/triton_key.h"

struct mf_pull_configs {
    const char *channel, *folder;
    enum mf_framework framework;
    struct mf_model_arg model; /* no name: every file of the release is pulled */
    const char *fused;         /* as --fused-shared-experts of csv coverage */
    int64_t tp, ep;
    const char *device; /* NULL: the only device of the files */
    bool force, quiet;
};

/* Returns the exit code; *ret_changed: a file was written or removed. */
int mf_pull_configs(struct mf_cli *cli, const struct mf_pull_configs *o, bool *ret_changed);
