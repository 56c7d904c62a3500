#include "cli/tables/csv_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/cli.h"
#include "common/base/text.h"
#include "common/table/table_check.h"
#include "common/table/table_file.h"

#define FORMAT_CSV "csv"

void mf_csv_files_release(struct mf_csv_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        mf_table_free(f->tables[i]);
        mf_triton_file_free(f->triton[i]);
    }
    free(f->tables);
    free(f->triton);
    *f = (struct mf_csv_files){0};
}

/* How the files are read. */
struct reading {
    const char *format;
    enum mf_framework framework; /* if the format names one */
    bool strict;                 /* a file that cannot be parsed is an error */
};

static int read_format(const char *format, struct reading *ret)
{
    ret->format = format;
    if (!format || strcmp(format, FORMAT_CSV) == 0 || mf_framework_parse(format, &ret->framework) == 0)
        return 0;
    return mf_cli_fail(MF_EXIT_USAGE, "--format '%s': expected csv, vllm or sglang", format);
}

static bool is_triton(const struct reading *reading, const struct mf_buf *text)
{
    return reading->format ? strcmp(reading->format, FORMAT_CSV) != 0
                           : mf_triton_file_is(text->data, text->len);
}

static int read_triton(const struct reading *reading, const char *path, const struct mf_buf *text,
                       struct mf_table **ret, struct mf_triton_file **ret_file)
{
    _cleanup_(mf_table_freep) struct mf_table *findings = NULL;
    const enum mf_framework *framework = reading->format ? &reading->framework : NULL;

    if (mf_table_new(path, false, &findings) < 0 ||
        mf_triton_file_read(path, text->data, text->len, framework, findings, ret_file) < 0)
        return mf_cli_out_of_memory();
    if (reading->strict && (*ret_file)->n_entries == 0) {
        *ret_file = mf_triton_file_free(*ret_file);
        return mf_cli_fail(MF_EXIT_USAGE, "%s: not a configuration file: %s", path,
                           findings->n_problems > 0
                               ? findings->problems[0].reason
                               : "the name belongs to another kernel than the Triton one");
    }
    *ret = MF_TAKE(findings);
    return 0;
}

static int read_csv(const struct reading *reading, const char *path, const struct mf_buf *text,
                    struct mf_table **ret)
{
    char why[MF_REASON_MAX] = "";
    int r = mf_table_read(path, text->data, text->len, ret, why);

    if (r == -EBADMSG || r == -EFBIG) {
        if (reading->strict)
            return mf_cli_fail(MF_EXIT_USAGE, "%s: not a table: %s", path, why);
        r = mf_table_unreadable(path, why, ret);
    }
    return r < 0 ? mf_cli_out_of_memory() : 0;
}

static int read_one(const struct reading *reading, const char *path, struct mf_table **ret,
                    struct mf_triton_file **ret_file)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX] = "";
    int r;

    mf_buf_init(&text, MF_TABLE_FILE_MAX);
    r = mf_table_file_text(path, &text, why);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", why);
    return is_triton(reading, &text) ? read_triton(reading, path, &text, ret, ret_file)
                                     : read_csv(reading, path, &text, ret);
}

static int read_all(char *const *paths, size_t n, const struct reading *reading, struct mf_csv_files *ret)
{
    ret->tables = calloc(n + 1, sizeof(struct mf_table *));
    ret->triton = calloc(n + 1, sizeof(struct mf_triton_file *));
    if (!ret->tables || !ret->triton)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < n; i++, ret->n++) {
        int code = read_one(reading, paths[i], &ret->tables[i], &ret->triton[i]);

        if (code != 0)
            return code;
    }
    return 0;
}

int mf_csv_files_read_tables(char *const *paths, size_t n, const char *format, struct mf_csv_files *ret)
{
    struct reading reading = {.strict = true};
    int code = read_format(format, &reading);

    return code != 0 ? code : read_all(paths, n, &reading, ret);
}

int mf_csv_files_read(char *const *paths, size_t n, const char *format, struct mf_csv_files *ret)
{
    struct reading reading = {0};
    int code = read_format(format, &reading);

    return code != 0 ? code : read_all(paths, n, &reading, ret);
}
