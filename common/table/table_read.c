/* Reads a table: each row after the header is accepted, accepted with a warning, or kept as a stray. */
#include "common/base/text.h"
#include "common/table/csv.h"
#include "common/table/table_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define N_SHAPE MF_SHAPE_N_COLUMNS

/* Reports an invalid cell. If the row is too short, its cells are probably shifted, so the function reports
 * that a cell is missing, and only once per row. */
void mf_table_bad_cell(struct mf_table_reader *rd, enum mf_problem_code code, const char *column,
                       const char *cell, const char *expected)
{
    char buf[MF_EXCERPT_MAX], why[MF_EXPECTED_MAX];
    if (rd->shortened && rd->row_errors > 0)
        return;
    if (rd->shortened)
        mf_table_report(rd, MF_ERROR, MF_PROBLEM_RAGGED, column,
                        "the row has %zu cells and the header %zu, and %s is '%s' (expected %s): add the "
                        "missing cell before it",
                        rd->csv.n_cells, rd->t->n_header, column, mf_table_excerpt(cell, buf), expected);
    else
        mf_table_report(rd, MF_ERROR, *cell ? code : MF_PROBLEM_MISSING, column, "%s",
                        mf_table_expected(column, cell, expected, why));
}

const char *mf_table_cell(const struct mf_table_reader *rd, int column)
{
    return column >= 0 && (size_t)column < rd->csv.n_cells ? rd->csv.cells[column] : "";
}

/* Parses an integer. Also accepts "32.0", which pandas writes in columns that had missing values. */
static int parse_count(const char *text, int64_t min, int64_t max, int64_t *ret)
{
    char whole[24];
    size_t len = strlen(text);
    if (len <= 2 || len - 2 >= sizeof(whole) || strcmp(text + len - 2, ".0") != 0)
        return mf_parse_i64(text, min, max, ret);
    memcpy(whole, text, len - 2);
    whole[len - 2] = '\0';
    return mf_parse_i64(whole, min, max, ret);
}

static enum mf_problem_code code_of(int r)
{
    return r == -ERANGE ? MF_PROBLEM_RANGE : MF_PROBLEM_VALUE;
}

static void read_class(struct mf_table_reader *rd, struct mf_table_row *row)
{
    const char *gfx = mf_table_cell(rd, rd->gfx), *cu_num = mf_table_cell(rd, rd->cu_num);
    if (!rd->t->tuned && !*gfx && !*cu_num)
        return;
    int64_t cu = 0;
    int r = parse_count(cu_num, 1, 1000000, &cu);
    if (r < 0) {
        mf_table_bad_cell(rd, code_of(r), "cu_num", cu_num, "the number of compute units, 1 to 1000000");
        return;
    }
    row->class.cu_num = (int)cu;
    const char *inferred = *gfx ? NULL : mf_gfx_of_cu_num((int)cu);
    if (inferred && rd->gfx >= 0)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_MISSING, "gfx",
                        "gfx is empty; inferred as %s, which has %d compute units", inferred, (int)cu);
    if (inferred)
        gfx = inferred;
    if (!mf_is_name(gfx, MF_GFX_MAX - 1))
        mf_table_bad_cell(
            rd, MF_PROBLEM_VALUE, "gfx", gfx,
            "the device's architecture, such as gfx942 (it is inferred only from cu_num 80, 256 and 304)");
    else
        (void)mf_copy(row->class.gfx, sizeof(row->class.gfx), gfx);
}

static bool is_integer(const char *cell)
{
    int64_t value;
    int r = mf_parse_i64(cell, INT64_MIN, INT64_MAX, &value);
    return r == 0 || r == -ERANGE;
}

/* columns use_g1u1 and doweight_stage1 */
#define FIRST_FLAG (N_SHAPE - 2)

static void note_flag(struct mf_table_reader *rd, int i, const char *cell)
{
    if (i < FIRST_FLAG)
        return;
    bool plain = cell[0] == '1' || cell[0] == '0';
    int64_t *first = plain ? &rd->plain_flag[i] : &rd->other_flag[i];
    if (*first == 0)
        *first = rd->csv.line;
}

static void check_spelling(struct mf_table_reader *rd, struct mf_table_row *row, int i, const char *cell)
{
    char canonical[64], buf[MF_EXCERPT_MAX];
    const char *column = mf_shape_columns[i];
    if (mf_shape_get(&row->shape, column, canonical, sizeof(canonical)) < 0 || strcmp(canonical, cell) == 0)
        return;
    row->misspelled |= (uint16_t)(1u << i);
    mf_table_report(rd, MF_WARNING, MF_PROBLEM_SPELLING, column,
                    "%s is spelled '%s'; production matches only '%s', which moefarm writes", column,
                    mf_table_excerpt(cell, buf), canonical);
}

static void read_shape(struct mf_table_reader *rd, struct mf_table_row *row)
{
    struct mf_shape *shape = &row->shape;
    size_t errors = rd->row_errors;
    for (int i = 0; i < N_SHAPE; i++) {
        const char *why, *cell = mf_table_cell(rd, rd->shape[i]);
        if (mf_shape_set(shape, mf_shape_columns[i], cell, &why) < 0)
            mf_table_bad_cell(rd, is_integer(cell) ? MF_PROBLEM_RANGE : MF_PROBLEM_VALUE, mf_shape_columns[i],
                              cell, why);
        else if (rd->t->tuned) {
            note_flag(rd, i, cell);
            check_spelling(rd, row, i, cell);
        }
    }
    const char *column, *why, *form = mf_table_cell(rd, rd->own[MF_OWN_FORM]);
    if (mf_shape_set(shape, MF_SHAPE_FORM, form, &why) < 0)
        mf_table_bad_cell(rd, MF_PROBLEM_VALUE, MF_SHAPE_FORM, form, why);
    mf_table_read_newer(rd, row);
    if (rd->row_errors > errors)
        return;
    char value[64];
    if (mf_shape_check(shape, &column, &why) < 0) {
        (void)mf_shape_get(shape, column, value, sizeof(value));
        mf_table_bad_cell(rd, MF_PROBLEM_RANGE, column, value, why);
    } else if (rd->t->tuned && rd->t->op == MF_TABLE_FMOE && mf_token_bucket(shape->token) != shape->token) {
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_BUCKET, "token",
                        "token is %" PRId64
                        "; production looks up only powers of two up to 32768, and 131072. For "
                        "this token count it looks up %" PRId64 ": tune that count, or remove the row",
                        shape->token, mf_token_bucket(shape->token));
    }
}

/* clang-format off */
static const struct count {
    enum mf_result column;
    size_t offset;
    int32_t min, max;
    const char *expected;
} counts[] = {
    {MF_RESULT_BLOCK_M, offsetof(struct mf_table_row, block_m), 1, 65536, "rows per block, 1 to 65536"},
    {MF_RESULT_KSPLIT,  offsetof(struct mf_table_row, ksplit), -1, 65536, "the split of K, -1 to 65536"},
    {MF_RESULT_FLAT,    offsetof(struct mf_table_row, flat),    0, 2,     "0, 1 or 2"},
};
static const struct flag {
    enum mf_result column;
    size_t offset;
} flags[] = {
    {MF_RESULT_RUN_1STAGE, offsetof(struct mf_table_row, run_1stage)},
    {MF_RESULT_XBF16,      offsetof(struct mf_table_row, xbf16)},
};
/* clang-format on */

static void read_counts(struct mf_table_reader *rd, struct mf_table_row *row)
{
    for (const struct count *c = counts; c < counts + MF_ARRAY_LEN(counts); c++) {
        int64_t value;
        if (rd->result[c->column] < 0)
            continue;
        const char *cell = mf_table_cell(rd, rd->result[c->column]);
        int r = parse_count(cell, c->min, c->max, &value);
        if (r < 0)
            mf_table_bad_cell(rd, code_of(r), mf_result_name(c->column), cell, c->expected);
        else
            *(int32_t *)(void *)((char *)row + c->offset) = (int32_t)value;
    }
    for (const struct flag *f = flags; f < flags + MF_ARRAY_LEN(flags); f++) {
        if (rd->result[f->column] < 0)
            continue;
        const char *cell = mf_table_cell(rd, rd->result[f->column]);
        int64_t value;
        bool *ret = (bool *)((char *)row + f->offset);
        if (mf_parse_bool(cell, ret) < 0) {
            if (parse_count(cell, 0, 1, &value) < 0)
                mf_table_bad_cell(rd, MF_PROBLEM_VALUE, mf_result_name(f->column), cell, "1 or 0");
            else
                *ret = value != 0;
        }
    }
}

static const char *keep(struct mf_table_reader *rd, const char *text)
{
    const char *copy = mf_table_keep(rd->t, text);
    if (!copy)
        rd->r = -ENOMEM;
    return copy;
}

/* True if the row was written without times: its us is empty, and then its other numbers may be empty too. A
 * row that is too short has shifted cells, so its empty cells mean nothing. */
static bool is_untimed(const struct mf_table_reader *rd)
{
    return !rd->shortened && rd->result[MF_RESULT_US] >= 0 && !*mf_table_cell(rd, rd->result[MF_RESULT_US]);
}

static void read_number(struct mf_table_reader *rd, struct mf_table_row *row, enum mf_result column)
{
    const char *cell = mf_table_cell(rd, rd->result[column]), *name = mf_result_name(column);
    bool percent = column == MF_RESULT_ERR1 || column == MF_RESULT_ERR2;
    double value;
    if (!*cell && is_untimed(rd)) {
        row->text[column] = keep(rd, cell);
        return;
    }
    int r = mf_result_parse_number(column, cell, &value);
    if (r < 0 || !mf_result_number_ok(value)) {
        mf_table_bad_cell(rd, code_of(r < 0 ? r : -ERANGE), name, cell,
                          percent ? "a percentage such as 0.9%" : "a number");
        return;
    }
    if (value < 0 && !percent) {
        mf_table_bad_cell(
            rd, MF_PROBLEM_RANGE, name, cell,
            "a number >= 0 (AITER's tuner writes negative numbers for failed shapes: remove the row and "
            "tune the shape)");
        return;
    }
    mf_result_set_number(row, column, value);
    row->text[column] = keep(rd, cell);
}

static void read_results(struct mf_table_reader *rd, struct mf_table_row *row)
{
    read_counts(rd, row);
    for (enum mf_result c = 0; c < MF_RESULT_N_; c++)
        if (rd->result[c] >= 0 && mf_result_is_number(c))
            read_number(rd, row, c);
    row->kernel1 = keep(rd, mf_table_cell(rd, rd->result[MF_RESULT_KERNEL1]));
    row->kernel2 = keep(rd, mf_table_cell(rd, rd->result[MF_RESULT_KERNEL2]));
    if (rd->t->op != MF_TABLE_FMOE)
        return;
    if (mf_table_no_kernel(row->kernel1))
        mf_table_bad_cell(rd, MF_PROBLEM_VALUE, "kernelName1", row->kernel1 ? row->kernel1 : "",
                          "a kernel name");
    if (is_untimed(rd) && rd->row_errors == 0)
        mf_table_report(
            rd, MF_WARNING, MF_PROBLEM_NO_TIME, "us",
            "us is empty, so the row was not measured: a merge replaces it by any row with a time; "
            "tune the shape to fill it in");
    else if (row->us == 0 && rd->row_errors == 0)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_ZERO_TIME, "us",
                        "us is %s, which is no measured time; tune the shape again",
                        mf_table_cell(rd, rd->result[MF_RESULT_US]));
}

static void read_others(struct mf_table_reader *rd, struct mf_table_row *row)
{
    struct mf_table *t = rd->t;
    const char *tag = mf_table_cell(rd, rd->tag);
    char buf[MF_EXCERPT_MAX];
    row->tag = *tag ? keep(rd, tag) : NULL;
    if (*tag)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_TAGGED, "_tag",
                        "_tag is '%s': libfmoe skips the row, AITER skips it if the tag is flydsl_fallback, "
                        "and AITER's tuner drops "
                        "it; remove the tag or the row",
                        mf_table_excerpt(tag, buf));
    for (int i = 0; i < MF_OWN_N_; i++)
        if (*mf_table_cell(rd, rd->own[i]))
            row->own[i] = keep(rd, mf_table_cell(rd, rd->own[i]));
    if (t->n_other == 0)
        return;
    row->other = mf_table_alloc(t, t->n_other, sizeof(*row->other));
    if (!row->other) {
        rd->r = -ENOMEM;
        return;
    }
    row->n_other = t->n_other;
    for (size_t i = 0; i < t->n_other; i++)
        row->other[i] = keep(rd, mf_table_cell(rd, rd->other[i]));
}

static bool is_optional(const struct mf_table_reader *rd, size_t column)
{
    if (rd->t->header[column][0] == '\0' || (int)column == rd->tag)
        return true;
    for (int i = 0; i < MF_OWN_N_; i++)
        if (rd->own[i] == (int)column)
            return true;
    for (size_t i = 0; i < rd->t->n_other; i++)
        if (rd->other[i] == (int)column)
            return true;
    return false;
}

/* Checks the number of cells in the row. Runs after the cells are checked, because only mf_table_bad_cell()
 * can tell that cells are shifted. */
static void check_width(struct mf_table_reader *rd)
{
    size_t n = rd->csv.n_cells, n_header = rd->t->n_header;
    for (size_t i = n; i < n_header; i++) {
        if (is_optional(rd, i))
            continue;
        if (rd->row_errors == 0)
            mf_table_report(rd, MF_ERROR, MF_PROBLEM_RAGGED, "",
                            "the row has %zu cells and the header %zu; add %s and the cells after it", n,
                            n_header, rd->t->header[i]);
        return;
    }
    for (size_t i = n_header; i < n; i++) {
        if (!*rd->csv.cells[i])
            continue;
        mf_table_report(rd, MF_ERROR, MF_PROBLEM_RAGGED, "",
                        "the row has %zu cells and the header %zu; remove the surplus cells", n, n_header);
        return;
    }
    if (rd->row_errors == 0 && n != n_header)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_RAGGED, "",
                        "the row has %zu cells and the header %zu; nothing is lost, because %s", n, n_header,
                        n < n_header ? "the missing cells may be empty" : "the surplus cells are empty");
}

static int keep_stray(struct mf_table_reader *rd)
{
    struct mf_table_stray stray = {.before = rd->t->n_rows, .line = rd->csv.line, .n_cells = rd->csv.n_cells};
    if (stray.n_cells > 0) {
        stray.cells = mf_table_alloc(rd->t, stray.n_cells, sizeof(*stray.cells));
        if (!stray.cells)
            return -ENOMEM;
        for (size_t i = 0; i < stray.n_cells; i++)
            stray.cells[i] = keep(rd, rd->csv.cells[i]);
    }
    return rd->r < 0 ? rd->r : mf_table_push_stray(rd->t, &stray);
}

static int add_row(struct mf_table_reader *rd, const struct mf_table_row *row)
{
    const struct mf_table_row *earlier;
    int r = mf_table_push(rd->t, row, &earlier);
    /* Keys of other operators have columns that are not read here. */
    if (r < 0 || !earlier || rd->t->op != MF_TABLE_FMOE)
        return r;
    mf_table_report(rd, MF_WARNING, MF_PROBLEM_DUPLICATE, "",
                    "same key as line %" PRId64 "; production refuses such a table: remove one of the rows",
                    earlier->line);
    return 0;
}

/* True for a conflict marker of git. */
static bool is_conflict_mark(const struct mf_table_reader *rd)
{
    static const char *const marks[] = {"<<<<<<<", "|||||||", "=======", ">>>>>>>"};
    for (size_t i = 0; i < MF_ARRAY_LEN(marks); i++)
        if (strncmp(rd->csv.cells[0], marks[i], strlen(marks[i])) == 0)
            return true;
    return false;
}

static int read_row(struct mf_table_reader *rd)
{
    struct mf_table_row row = {.line = rd->csv.line};
    rd->row_errors = 0;
    if (is_conflict_mark(rd)) {
        mf_table_report(rd, MF_ERROR, MF_PROBLEM_CONFLICT, "",
                        "git conflict marker: keep the rows of one side and remove the markers");
        return keep_stray(rd);
    }
    rd->shortened = rd->csv.n_cells < rd->t->n_header;
    if (rd->part != MF_TABLE_SHAPES)
        read_class(rd, &row);
    read_shape(rd, &row);
    if (rd->t->tuned && rd->part == MF_TABLE_ROWS)
        read_results(rd, &row);
    check_width(rd);
    if (rd->row_errors == 0)
        read_others(rd, &row);
    if (rd->r < 0)
        return rd->r;
    return rd->row_errors > 0 ? keep_stray(rd) : add_row(rd, &row);
}

static int read_rows(struct mf_table_reader *rd)
{
    for (;;) {
        int r = mf_csv_next(&rd->csv);
        if (r == -ENOMEM || r == -EFBIG) {
            mf_format(rd->why, MF_REASON_MAX, "line %" PRId64 ": %s", rd->csv.line, rd->csv.why);
            return r;
        }
        if (r == 0)
            return rd->r;
        if (r < 0) {
            mf_table_report(rd, MF_ERROR, MF_PROBLEM_MALFORMED, "", "%s; repair the line", rd->csv.why);
            r = keep_stray(rd);
        } else {
            r = read_row(rd);
        }
        if (r < 0)
            return r;
    }
}

/* Reports a flag column that contains both 1 and True. pandas reads such a column as text, which never equals
 * the bool in production's key. */
static void check_mixed(struct mf_table_reader *rd)
{
    for (int i = FIRST_FLAG; i < N_SHAPE && rd->t->tuned && rd->t->op == MF_TABLE_FMOE; i++) {
        int64_t plain = rd->plain_flag[i], other = rd->other_flag[i];
        if (plain == 0 || other == 0)
            continue;
        rd->csv.line = MF_MAX(plain, other);
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_MIXED, mf_shape_columns[i],
                        "%s is spelled in two ways, 1 or 0 (line %" PRId64
                        ") and True or False (line %" PRId64
                        "), so pandas reads the column as text and production matches no row of this table; "
                        "write 1 or 0 in every row",
                        mf_shape_columns[i], plain, other);
    }
}

/* Runs the checks that need all rows, then sorts all problems by line. */
static int check_all_rows(struct mf_table_reader *rd)
{
    check_mixed(rd);
    if (rd->r < 0)
        return rd->r;
    int r = mf_table_check_copied(rd->t);
    return r < 0 ? r : mf_table_sort_problems(rd->t);
}

int mf_table_read_part(const char *name, const char *text, size_t len, enum mf_table_part part,
                       struct mf_table **ret, char why[MF_REASON_MAX])
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    mf_format(why, MF_REASON_MAX, "out of memory");
    int r = mf_table_new(name, false, &t);
    if (r < 0)
        return r;
    struct mf_table_reader rd = {.t = t, .part = part, .why = why};
    mf_csv_init(&rd.csv, text, len, &MF_CSV_LIMITS_DEFAULT);
    r = mf_table_read_header(&rd);
    if (r == 0)
        r = read_rows(&rd);
    if (r == 0 && part == MF_TABLE_ROWS)
        r = check_all_rows(&rd);
    mf_csv_release(&rd.csv);
    if (r < 0)
        return r;
    why[0] = '\0';
    *ret = MF_TAKE(t);
    return 0;
}

int mf_table_read(const char *name, const char *text, size_t len, struct mf_table **ret,
                  char why[MF_REASON_MAX])
{
    return mf_table_read_part(name, text, len, MF_TABLE_ROWS, ret, why);
}
