/* Reads the tables named on the command line. */
#include <errno.h>
#include <stdlib.h>

#include "cli/support/csv.h"
#include "common/base/text.h"
#include "common/table/table_check.h"
#include "common/table/table_file.h"

void mf_csv_files_release(struct mf_csv_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        mf_table_free(f->tables[i]);
    free(f->tables);
    *f = (struct mf_csv_files){0};
}

int mf_csv_read(const char *path, struct mf_table **ret)
{
    char why[MF_REASON_MAX] = "";
    int r = mf_table_file_read(path, ret, why);

    if (r == -EBADMSG || r == -EFBIG)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: not a table: %s", path, why);
    return r < 0 ? mf_cli_fail(MF_EXIT_USAGE, "%s", why) : 0;
}

static int read_to_check(const char *path, struct mf_table **ret)
{
    char why[MF_REASON_MAX] = "";
    int r = mf_table_file_read(path, ret, why);

    if (r == -EBADMSG || r == -EFBIG)
        r = mf_table_unreadable(path, why, ret);
    return r < 0 ? mf_cli_fail(MF_EXIT_USAGE, "%s", why) : 0;
}

static int read_all(char *const *paths, size_t n, int (*read_one)(const char *, struct mf_table **),
                    struct mf_csv_files *ret)
{
    ret->tables = calloc(n + 1, sizeof(struct mf_table *));
    if (!ret->tables)
        return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++, ret->n++) {
        int code = read_one(paths[i], &ret->tables[i]);

        if (code != 0)
            return code;
    }
    return 0;
}

int mf_csv_files_read_tables(char *const *paths, size_t n, struct mf_csv_files *ret)
{
    return read_all(paths, n, mf_csv_read, ret);
}

int mf_csv_files_read(char *const *paths, size_t n, struct mf_csv_files *ret)
{
    return read_all(paths, n, read_to_check, ret);
}
