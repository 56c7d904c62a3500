/* Counts the rows of AITER's tuned tables whose kernels kernels/aiter never offers as a pair, per device
 * class.
 *
 * By default the tables are those of tests/data/aiter. To count over a checkout of ROCm/aiter:
 *
 *     MF_AITER_TABLES=aiter/configs:aiter/configs/model_configs check_aiter_winners */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/moe/step.h"
#include "common/table/table_file.h"
#include "kernels/aiter/aiter.h"
#include "support/mf_check.h"

/* Winners that are not offered, and why. */
static const struct {
    const char *kernel, *why;
} exceptions[] = {
    {"flydsl_moe2_afp8_wfp4_bf16_t128x256x256_atomic_persist_sbm128",
     "the tile has as many rows as the block, so the name without _sbm128 is the same kernel, and is "
     "offered"},
};

struct search {
    struct mf_aiter_sink sink; /* must be first */
    const struct mf_table_row *row;
    /* Layouts of h that the kernels of both names write and read: bit 0 the plain layout, bit 1 that of v2,
     * bit 2 that of mxmoe. 0: the kernel is not offered. */
    unsigned layouts[2];
};

static int look(struct mf_aiter_sink *sink, const struct mf_aiter_kernel *k)
{
    struct search *s = (struct search *)sink;
    char name[MF_STEP_NAME_MAX];
    bool second = k->stage == MF_STAGE_STAGE2;
    const struct mf_table_row *row = s->row;
    if (mf_step_drop_ksplit(k->name, name) != (second ? 0 : row->ksplit) ||
        strcmp(name, second ? row->kernel2 : row->kernel1) != 0 ||
        (k->block_m != 0 && k->block_m != row->block_m))
        return 0;
    s->layouts[second] |= k->flags & MF_AITER_V2 ? 2 : k->flags & MF_AITER_MXMOE ? 4 : 1;
    return 0;
}

__attribute__((format(printf, 5, 6))) static int ignore(struct mf_aiter_sink *sink, const char *family,
                                                        const char *kernel, const char *rule,
                                                        const char *format, ...)
{
    (void)sink;
    (void)family;
    (void)kernel;
    (void)rule;
    (void)format;
    return 0;
}

struct count {
    const char *gfx;
    int n_rows, n_missing, n_unexplained;
};

static const char *explanation(const struct mf_table_row *row)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(exceptions); i++)
        if (strcmp(row->kernel1, exceptions[i].kernel) == 0 ||
            strcmp(row->kernel2, exceptions[i].kernel) == 0)
            return exceptions[i].why;
    return NULL;
}

static void count_row(const char *file, const struct mf_table_row *row, struct count *c)
{
    struct search s = {.sink = {.kernel = look, .no = ignore}, .row = row};
    struct mf_aiter_layer layer = {.gfx = row->class.gfx, .shape = &row->shape};
    const char *why = explanation(row);
    ck_assert_int_eq(mf_aiter_enumerate(&layer, &s.sink), 0);
    c->n_rows++;
    if (mf_table_no_kernel(row->kernel2) ? s.layouts[0] != 0 : (s.layouts[0] & s.layouts[1]) != 0)
        return;
    c->n_missing++;
    c->n_unexplained += why == NULL;
    printf("%s:%lld: %s %s: %s\n", file, (long long)row->line, row->kernel1, row->kernel2,
           why ? why : "not offered");
}

static void count_file(const char *folder, const char *file, struct count counts[2])
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char path[1024], why[MF_REASON_MAX];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    ck_assert_msg(mf_table_file_read(path, &t, why) == 0, "%s: %s", path, why);
    if (!t->tuned || t->op != MF_TABLE_FMOE)
        return;
    for (size_t i = 0; i < t->n_rows; i++)
        for (int c = 0; c < 2; c++)
            if (strcmp(t->rows[i].class.gfx, counts[c].gfx) == 0)
                count_row(file, &t->rows[i], &counts[c]);
}

static void count_folder(const char *folder, struct count counts[2])
{
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, NULL, alphasort);
    ck_assert_msg(n >= 0, "%s: %m", folder);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(entries[i]->d_name);
        if (strstr(entries[i]->d_name, "_fmoe") && len > 4 &&
            strcmp(entries[i]->d_name + len - 4, ".csv") == 0)
            count_file(folder, entries[i]->d_name, counts);
        free(entries[i]);
    }
    free(entries);
}

MF_TEST(winners_are_offered)
{
    struct count counts[2] = {{.gfx = "gfx942"}, {.gfx = "gfx950"}};
    const char *folders = getenv("MF_AITER_TABLES");
    if (!folders)
        folders = MF_TEST_DATA "/aiter";
    for (size_t len; *folders; folders += len + (folders[len] == ':')) {
        char folder[512];
        len = strcspn(folders, ":");
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)len, folders);
        count_folder(folder, counts);
    }
    for (int c = 0; c < 2; c++) {
        printf("%s: %d of %d rows have a winner that is never offered\n", counts[c].gfx, counts[c].n_missing,
               counts[c].n_rows);
        ck_assert_int_eq(counts[c].n_unexplained, 0);
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300});
}
