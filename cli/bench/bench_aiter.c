/* Rows of AITER's own tables, which run through aiter.fused_moe. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_rows.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/production_lookup.h"
#include "common/table/aiter_row.h"
#include "common/table/table.h"

#define FAMILY "aiter"

static bool is_aiters(const struct mf_bench *b, const struct mf_table_row *row)
{
    const char *pipeline = row->own[MF_OWN_PIPELINE];

    return mf_device_class_equal(&row->class, &b->device->info.class) && (!pipeline || !*pipeline);
}

size_t mf_bench_aiter_count(const struct mf_bench *b, const struct mf_table *t)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n_rows; i++)
        n += is_aiters(b, &t->rows[i]);
    return n;
}

static const char *kernel_of(const char *name)
{
    return !name || mf_table_no_kernel(name) ? "" : name;
}

static cJSON *row_json(const struct mf_table_row *t)
{
    struct mf_aiter_row row = {.block_m = t->block_m,
                               .ksplit = t->ksplit,
                               .flat = t->flat,
                               .run_1stage = t->run_1stage,
                               .xbf16 = t->xbf16};

    (void)mf_copy(row.kernel1, sizeof(row.kernel1), kernel_of(t->kernel1));
    (void)mf_copy(row.kernel2, sizeof(row.kernel2), kernel_of(t->kernel2));
    return mf_aiter_row_json(&t->class, &t->shape, &row);
}

/* Prints everything that changes what fused_moe runs, because `compare` does not measure rows with equal
 * names. */
static char *print_names(const struct mf_table_row *t)
{
    char text[1024];

    mf_format(text, sizeof(text), FAMILY ":%s%s%s block_m=%d ksplit=%d%s%s", kernel_of(t->kernel1),
              *kernel_of(t->kernel2) ? "|" FAMILY ":" : "", kernel_of(t->kernel2), (int)t->block_m,
              (int)t->ksplit, t->run_1stage ? " run_1stage=1" : "", t->xbf16 ? " xbf16=1" : "");
    if (t->flat)
        mf_format(text + strlen(text), sizeof(text) - strlen(text), " flat=%d", (int)t->flat);
    return strdup(text);
}

static int open_row(const struct mf_bench *b, const struct mf_table *table, const struct mf_table_row *t,
                    struct mf_bench_row *row)
{
    _cleanup_(cJSON_Deletep) cJSON *json = row_json(t);
    char reason[MF_REASON_MAX];

    if (!json)
        return mf_cli_out_of_memory();
    if (t->variant) {
        mf_format(reason, sizeof(reason), "has columns of a newer AITER: %s", t->variant);
        return mf_bench_row_refuse(row, reason);
    }
    if (!mf_lookup_considers(MF_LOOKUP_AITER, table, t))
        return mf_bench_row_refuse(
            row, "AITER never matches the row, because of its spelling or tag; run `moefarm csv check`");
    return mf_bench_row_operate(b, FAMILY, json, row);
}

static int add_row(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table *table,
                   const struct mf_table_row *t)
{
    struct mf_bench_row *row = &r->items[r->n++];
    int code;

    *row = (struct mf_bench_row){
        .shape = t->shape, .us = t->us > 0 ? t->us : (double)NAN, .model = "", .reachable = true};
    row->chosen = print_names(t);
    row->names = row->chosen;
    if (!row->chosen)
        return mf_cli_out_of_memory();
    code = mf_bench_row_provenance(b, NULL, row);
    return code != 0 ? code : open_row(b, table, t, row);
}

int mf_bench_aiter_add(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table *t)
{
    int code = 0;

    for (size_t i = 0; i < t->n_rows && code == 0; i++) {
        if (is_aiters(b, &t->rows[i]))
            code = add_row(r, b, t, &t->rows[i]);
    }
    return code;
}
