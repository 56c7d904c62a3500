/* Parses the header of a table: finds the columns and detects tables of other operators. */
#include "common/base/text.h"
#include "common/table/table_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define N_SHAPE MF_SHAPE_N_COLUMNS

void mf_table_report(struct mf_table_reader *rd, enum mf_severity severity, enum mf_problem_code code,
                     const char *column, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int r = mf_table_problemv(rd->t, &(struct mf_problem){severity, code, rd->csv.line, column, NULL}, format,
                              args);
    va_end(args);
    if (r < 0)
        rd->r = r;
    rd->row_errors += severity == MF_ERROR;
}

const char *mf_table_excerpt(const char *cell, char buf[MF_EXCERPT_MAX])
{
    size_t i = 0;
    for (; cell[i] && i < MF_EXCERPT_MAX - 1; i++)
        buf[i] = cell[i] >= 0x20 && cell[i] < 0x7f ? cell[i] : '?';
    buf[i] = '\0';
    if (cell[i])
        memcpy(buf + MF_EXCERPT_MAX - 4, "...", 4);
    return buf;
}

const char *mf_table_expected(const char *column, const char *cell, const char *expected,
                              char buf[MF_EXPECTED_MAX])
{
    char excerpt[MF_EXCERPT_MAX];
    if (*cell)
        mf_format(buf, MF_EXPECTED_MAX, "%s is '%s'; write %s", column, mf_table_excerpt(cell, excerpt),
                  expected);
    else
        mf_format(buf, MF_EXPECTED_MAX, "%s is empty; write %s", column, expected);
    return buf;
}

static int find(const struct mf_table_reader *rd, const char *name)
{
    return mf_csv_column(rd->t->header, rd->t->n_header, name);
}

static bool is_known(const struct mf_table_reader *rd, int column)
{
    if (column == rd->gfx || column == rd->cu_num || column == rd->tag)
        return true;
    for (int i = 0; i < N_SHAPE; i++)
        if (rd->shape[i] == column)
            return true;
    for (int i = 0; i < MF_RESULT_N_ && rd->t->tuned; i++)
        if (rd->result[i] == column)
            return true;
    for (int i = 0; i < MF_OWN_N_; i++)
        if (rd->own[i] == column)
            return true;
    return false;
}

/* True for names that pandas gives to unnamed columns. AITER's tuner drops these columns too. */
static bool is_nameless(const char *name)
{
    return *name == '\0' || strncmp(name, "Unnamed", 7) == 0;
}

static int keep_header(struct mf_table_reader *rd)
{
    struct mf_table *t = rd->t;
    t->header = mf_table_alloc(t, rd->csv.n_cells, sizeof(*t->header));
    if (!t->header)
        return -ENOMEM;
    for (size_t i = 0; i < rd->csv.n_cells; i++) {
        const char *name = is_nameless(rd->csv.cells[i]) ? "" : rd->csv.cells[i];
        if (*name && mf_csv_column(t->header, i, name) >= 0) {
            char buf[MF_EXCERPT_MAX];
            mf_format(rd->why, MF_REASON_MAX, "the header names the column '%s' twice; remove one of them",
                      mf_table_excerpt(name, buf));
            return -EBADMSG;
        }
        t->header[i] = (char *)mf_table_keep(t, name);
        if (!t->header[i])
            return -ENOMEM;
        t->n_header = i + 1;
    }
    return 0;
}

static int list_others(struct mf_table_reader *rd)
{
    struct mf_table *t = rd->t;
    t->other = mf_table_alloc(t, t->n_header, sizeof(*t->other));
    rd->other = mf_table_alloc(t, t->n_header, sizeof(*rd->other));
    if (!t->other || !rd->other)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_header; i++) {
        if (t->header[i][0] == '\0' || is_known(rd, (int)i))
            continue;
        rd->other[t->n_other] = (int)i;
        t->other[t->n_other++] = t->header[i];
    }
    mf_table_check_columns(rd);
    return rd->r;
}

static int require_column(struct mf_table_reader *rd, int column, const char *name)
{
    char buf[MF_EXCERPT_MAX];
    if (column >= 0)
        return 0;
    const char *meant = mf_table_similar_column(rd, name);
    if (meant)
        mf_format(rd->why, MF_REASON_MAX, "the header has no column '%s'; rename '%s' if that is meant", name,
                  mf_table_excerpt(meant, buf));
    else
        mf_format(
            rd->why, MF_REASON_MAX, "the header has no column '%s'; %s", name,
            rd->t->tuned
                ? "a tuned table needs gfx, cu_num, the twelve columns of a shape, block_m, kernelName1, "
                  "kernelName2 and us"
                : "an untuned table needs token, model_dim, inter_dim, expert, topk, act_type, dtype, "
                  "q_dtype_a, q_dtype_w, q_type, use_g1u1 and doweight_stage1");
    return -EBADMSG;
}

/* Checks that the required columns exist. If another result column is missing, its values are 0, as in
 * AITER's tuner. */
static int check_header(struct mf_table_reader *rd)
{
    static const enum mf_result required[] = {MF_RESULT_BLOCK_M, MF_RESULT_KERNEL1, MF_RESULT_KERNEL2,
                                              MF_RESULT_US};
    int r = rd->t->tuned && rd->part != MF_TABLE_SHAPES ? require_column(rd, rd->cu_num, "cu_num") : 0;
    for (int i = 0; i < N_SHAPE && r == 0; i++)
        r = require_column(rd, rd->shape[i], mf_shape_columns[i]);
    if (!rd->t->tuned || rd->t->op != MF_TABLE_FMOE || rd->part != MF_TABLE_ROWS)
        return r;
    for (size_t i = 0; i < MF_ARRAY_LEN(required) && r == 0; i++)
        r = require_column(rd, rd->result[required[i]], mf_result_name(required[i]));
    return r;
}

/* Tells the operators apart by columns that only one of them has. gate_mode and hidden_pad may also be
 * columns of fmoe tables of a newer AITER. */
static enum mf_table_op operator_of(const struct mf_table_reader *rd)
{
    bool untuned_grouped = !rd->t->tuned && find(rd, "gate_mode") >= 0 && rd->cu_num >= 0 && rd->gfx < 0;
    if (find(rd, "shared_expert_id") >= 0)
        return MF_TABLE_FHMOE;
    return find(rd, "max_m") >= 0 || untuned_grouped ? MF_TABLE_GROUPED : MF_TABLE_FMOE;
}

static void warn_other_operator(struct mf_table_reader *rd)
{
    /* clang-format off */
    static const char *const operators[] = {
        [MF_TABLE_FHMOE]   = "the fused MoE with a shared expert (column shared_expert_id)",
        [MF_TABLE_GROUPED] = "the grouped GEMM operator (columns max_m, gate_mode)",
    };
    /* clang-format on */
    if (rd->t->op != MF_TABLE_FMOE)
        mf_table_report(
            rd, MF_WARNING, MF_PROBLEM_OPERATOR, "",
            "this is a table of another operator, %s: only the columns shared with fmoe are read, and the "
            "table cannot be written or merged; use a tuned_fmoe.csv or untuned_fmoe.csv",
            operators[rd->t->op]);
}

int mf_table_read_header(struct mf_table_reader *rd)
{
    int r = mf_csv_next(&rd->csv);
    if (r == 0)
        mf_format(rd->why, MF_REASON_MAX, "the table is empty; its first line must name the columns");
    else if (r < 0)
        mf_format(rd->why, MF_REASON_MAX, "the header in line %" PRId64 " cannot be read: %s", rd->csv.line,
                  rd->csv.why);
    if (r <= 0)
        return r == -ENOMEM || r == -EFBIG ? r : -EBADMSG;
    r = keep_header(rd);
    if (r < 0)
        return r;
    rd->gfx = find(rd, "gfx");
    rd->cu_num = find(rd, "cu_num");
    rd->tag = find(rd, "_tag");
    for (int i = 0; i < N_SHAPE; i++)
        rd->shape[i] = find(rd, mf_shape_columns[i]);
    for (enum mf_result i = 0; i < MF_RESULT_N_; i++)
        rd->result[i] = find(rd, mf_result_name(i));
    for (enum mf_own i = 0; i < MF_OWN_N_; i++)
        rd->own[i] = find(rd, mf_own_name(i));
    for (enum mf_newer i = 0; i < MF_NEWER_N_; i++)
        rd->newer[i] = find(rd, mf_newer_name(i));
    rd->t->tuned = rd->result[MF_RESULT_US] >= 0 || rd->result[MF_RESULT_KERNEL1] >= 0 ||
                   rd->result[MF_RESULT_BLOCK_M] >= 0;
    rd->t->op = operator_of(rd);
    r = check_header(rd);
    if (r < 0)
        return r;
    warn_other_operator(rd);
    return list_others(rd);
}
