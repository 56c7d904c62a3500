#include "cli/support/compat_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/csv.h"
#include "common/table/table_formula.h"

void mf_compat_table_release(struct mf_compat_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->shapes[i].candidates);
    free(t->shapes);
    *t = (struct mf_compat_table){.n = 0};
}

static struct mf_compat_shape *find(struct mf_compat_table *t, const struct mf_device_class *class,
                                    const struct mf_shape *shape)
{
    /* Search backwards: tables are grouped by shape, so the last one usually matches */
    for (size_t i = t->n; i-- > 0;) {
        if (mf_device_class_equal(&t->shapes[i].class, class) && mf_shape_equal(&t->shapes[i].shape, shape))
            return &t->shapes[i];
    }
    return NULL;
}

int mf_compat_table_add(struct mf_compat_table *t, const struct mf_device_class *class,
                        const struct mf_shape *shape, const struct mf_compat_candidate *c)
{
    struct mf_compat_shape *s = find(t, class, shape);
    int r;

    if (!s) {
        r = mf_array_grow(&t->shapes, t->n, &t->cap, sizeof(*t->shapes));
        if (r < 0)
            return r;
        s = &t->shapes[t->n++];
        *s = (struct mf_compat_shape){.class = *class, .shape = *shape};
    }
    r = mf_array_grow(&s->candidates, s->n, &s->cap, sizeof(*s->candidates));
    if (r < 0)
        return r;
    s->candidates[s->n++] = *c;
    return 0;
}

/* ---- reading ---- */

struct row {
    struct mf_device_class class;
    struct mf_shape shape;
    struct mf_compat_candidate candidate;
};

typedef int (*set_fn)(struct row *r, const char *text);

static int set_stage(struct row *r, const char *text)
{
    return mf_compat_parse(text, &r->candidate.stage);
}

static int set_gfx(struct row *r, const char *text)
{
    return mf_copy(r->class.gfx, sizeof(r->class.gfx), text);
}

static int set_cu(struct row *r, const char *text)
{
    int64_t n;
    int e = mf_parse_i64(text, 1, 1000000, &n);

    if (e == 0)
        r->class.cu_num = (int)n;
    return e;
}

static int set_block(struct row *r, const char *text)
{
    int64_t n;
    int e = mf_parse_i64(text, 0, 1 << 20, &n);

    if (e == 0)
        r->candidate.block_m = (int32_t)n;
    return e;
}

/* AITER writes "inf" or "-1" if there is no time. */
static int set_us(struct row *r, const char *text)
{
    bool none = strcasestr(text, "inf") != NULL || strcasecmp(text, "nan") == 0 || !*text;

    r->candidate.us = (double)NAN;
    return none ? 0 : mf_parse_double(text, &r->candidate.us);
}

static int set_name(struct row *r, const char *text)
{
    return mf_copy(r->candidate.name, sizeof(r->candidate.name), text);
}

/* Accepts "0.9%" and "0.009". */
static int set_err(struct row *r, const char *text)
{
    char number[32];
    size_t len = strlen(text);
    bool percent = len > 0 && text[len - 1] == '%';

    mf_format(number, sizeof(number), "%.*s", (int)(len - percent), text);
    int e = mf_parse_double(number, &r->candidate.err);
    if (e == 0 && percent)
        r->candidate.err /= 100;
    return e;
}

static int set_flat(struct row *r, const char *text)
{
    int64_t n;
    int e = mf_parse_i64(text, 0, 2, &n);

    if (e == 0)
        r->candidate.flat = (int32_t)n;
    return e;
}

static int set_v2(struct row *r, const char *text)
{
    return mf_parse_bool(text, &r->candidate.v2);
}

static int set_fused(struct row *r, const char *text)
{
    return mf_parse_bool(text, &r->candidate.fused);
}

/* clang-format off */
static const struct {
    const char *name;
    set_fn set;
    bool required;
    const char *expected;
} columns[] = {
    {"stage",      set_stage, true,  "stage1, stage2, asm_1stage, asm_1stage_xbf16, cost_sort, cost_quant1 "
                                     "or cost_quant2"},
    {"gfx",        set_gfx,   false, "a name such as gfx942"},
    {"cu_num",     set_cu,    true,  "a number of compute units"},
    {"block_m",    set_block, true,  "a whole number"},
    {"us",         set_us,    true,  "microseconds, -1 or inf"},
    {"kernelName", set_name,  true,  "a name of at most 159 bytes"},
    {"err",        set_err,   true,  "a ratio such as 0.9% or 0.009"},
    {"flat",       set_flat,  false, "0, 1 or 2"},
    {"v2",         set_v2,    false, "0 or 1"},
    {"fused",      set_fused, false, "0 or 1"},
};
/* clang-format on */
#define N_COLUMNS MF_ARRAY_LEN(columns)

/* Positions of columns[] and of the shape's columns in the file. Negative: the file lacks the column. */
struct column_index {
    int own[N_COLUMNS], shape[MF_SHAPE_N_COLUMNS];
};

static int read_header(const struct mf_csv *csv, struct column_index *p, char why[MF_REASON_MAX])
{
    const char *missing = NULL;

    for (size_t i = 0; i < N_COLUMNS; i++) {
        p->own[i] = mf_csv_column(csv->cells, csv->n_cells, columns[i].name);
        if (p->own[i] < 0 && columns[i].required)
            missing = columns[i].name;
    }
    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        p->shape[i] = mf_csv_column(csv->cells, csv->n_cells, mf_shape_columns[i]);
        if (p->shape[i] < 0)
            missing = mf_shape_columns[i];
    }
    if (missing)
        mf_format(why, MF_REASON_MAX, "line %" PRId64 ": missing column %s; expected a table of candidates",
                  csv->line, missing);
    return missing ? -EBADMSG : 0;
}

static int refuse(const struct mf_csv *csv, const char *column, const char *text, const char *what,
                  char why[MF_REASON_MAX])
{
    mf_format(why, MF_REASON_MAX, "line %" PRId64 ": %s '%.60s': expected %s", csv->line, column, text, what);
    return -EBADMSG;
}

static const char *cell(const struct mf_csv *csv, int column)
{
    return column >= 0 && (size_t)column < csv->n_cells ? csv->cells[column] : "";
}

static int read_row(const struct mf_csv *csv, const struct column_index *p, struct row *r,
                    char why[MF_REASON_MAX])
{
    const char *what;

    *r = (struct row){.candidate.us = (double)NAN};
    for (size_t i = 0; i < N_COLUMNS; i++) {
        const char *text = cell(csv, p->own[i]);
        if (p->own[i] >= 0 && columns[i].set(r, text) < 0)
            return refuse(csv, columns[i].name, text, columns[i].expected, why);
    }
    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        const char *text = cell(csv, p->shape[i]);
        if (mf_shape_set(&r->shape, mf_shape_columns[i], text, &what) < 0)
            return refuse(csv, mf_shape_columns[i], text, what, why);
    }
    const char *gfx = mf_gfx_of_cu_num(r->class.cu_num);
    if (!r->class.gfx[0] && !gfx)
        return refuse(csv, "cu_num", cell(csv, p->own[2]), "80, 256 or 304, or a gfx column", why);
    if (!r->class.gfx[0])
        mf_format(r->class.gfx, sizeof(r->class.gfx), "%s", gfx);
    if (p->own[N_COLUMNS - 1] < 0)
        r->candidate.fused = mf_compat_name_is_fused(r->candidate.name);
    return 0;
}

int mf_compat_table_read(const char *text, size_t len, struct mf_compat_table *ret, char why[MF_REASON_MAX])
{
    _cleanup_(mf_compat_table_release) struct mf_compat_table t = {.n = 0};
    _cleanup_(mf_csv_release) struct mf_csv csv;
    struct column_index column_index;
    struct row row;
    bool first = true;
    int r;

    mf_csv_init(&csv, text, len, &MF_CSV_LIMITS_DEFAULT);
    mf_format(why, MF_REASON_MAX, "empty file");
    while ((r = mf_csv_next(&csv)) > 0) {
        r = first ? read_header(&csv, &column_index, why) : read_row(&csv, &column_index, &row, why);
        if (r == 0 && !first)
            r = mf_compat_table_add(&t, &row.class, &row.shape, &row.candidate);
        if (r < 0)
            return r;
        first = false;
    }
    if (r < 0)
        mf_format(why, MF_REASON_MAX, "line %" PRId64 ": %s", csv.line, csv.why);
    if (r < 0 || first)
        return -EBADMSG;
    *ret = t;
    t = (struct mf_compat_table){.n = 0};
    return 0;
}

/* ---- writing ---- */

static void print_header(struct mf_buf *out)
{
    (void)mf_buf_adds(out, "stage,gfx,cu_num");
    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        (void)mf_buf_addf(out, ",%s", mf_shape_columns[i]);
    (void)mf_buf_adds(out, ",block_m,ksplit,us,kernelName,err,tflops,bw,flat,v2,fused\n");
}

static void print_candidate(const struct mf_compat_shape *s, const struct mf_compat_candidate *c,
                            struct mf_buf *out)
{
    double tflops, bw;

    (void)mf_buf_addf(out, "%s,%s,%d", mf_compat_name(c->stage), s->class.gfx, s->class.cu_num);
    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        char value[64];
        (void)mf_shape_get(&s->shape, mf_shape_columns[i], value, sizeof(value));
        (void)mf_buf_addf(out, ",%s", value);
    }
    mf_table_rates(&s->shape, c->us, &tflops, &bw);
    (void)mf_buf_addf(out, ",%d,0,%.4f,%s,%.4f%%,%.2f,%.2f,%d,%d,%d\n", c->block_m, c->us, c->name,
                      100 * c->err, tflops, bw, c->flat, c->v2, c->fused);
}

void mf_compat_table_print(const struct mf_compat_table *t, bool header, struct mf_buf *out)
{
    if (header)
        print_header(out);
    for (size_t i = 0; i < t->n; i++) {
        for (size_t k = 0; k < t->shapes[i].n; k++)
            print_candidate(&t->shapes[i], &t->shapes[i].candidates[k], out);
    }
}

int mf_compat_add_row(struct mf_table *t, const struct mf_compat_shape *s, const struct mf_compat_row *row,
                      const char *provenance)
{
    struct mf_table_row out = {.class = s->class,
                               .shape = s->shape,
                               .block_m = MF_MAX(row->block_m, 1),
                               .ksplit = row->ksplit,
                               .us1 = row->us1,
                               .us2 = row->us2,
                               .us = row->us,
                               .err1 = row->err1,
                               .err2 = row->err2,
                               .kernel1 = row->kernel1,
                               .kernel2 = row->kernel2,
                               .run_1stage = row->run_1stage,
                               .xbf16 = row->xbf16,
                               .flat = row->flat};

    mf_table_rates(&s->shape, row->us, &out.tflops, &out.bw);
    out.own[MF_OWN_PROVENANCE] = provenance;
    return mf_table_add(t, &out);
}
