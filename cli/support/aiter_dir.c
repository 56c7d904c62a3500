#include "cli/support/aiter_dir.h"

#include "cli/support/api.h"

int mf_aiter_dir_read(const char *command, struct mf_aiter_dir *d)
{
    char why[MF_REASON_MAX];

    mf_buf_init(&d->text, MF_AITER_LISTS_MAX);
    if (!d->path)
        return 0;
    if (mf_aiter_tree_read(d->path, &d->text, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: --aiter-dir: %s", command, why);
    d->lists = (struct mf_aiter_lists){.text = d->text.data, .own = true};
    return 0;
}

void mf_aiter_dir_release(struct mf_aiter_dir *d)
{
    mf_buf_release(&d->text);
}

const struct mf_aiter_lists *mf_aiter_dir_lists(const struct mf_aiter_dir *d)
{
    return d->path ? &d->lists : mf_aiter_lists_builtin();
}
