/* Reads the columns that versions of AITER after e4048607 add to its tables. */
#include "common/base/text.h"
#include "common/table/table_reader.h"

#include <strings.h>

MF_NAMES_DEFINE(mf_newer, MF_NEWER_, MF_NEWER_MAP)

struct variant {
    char text[MF_TABLE_VARIANT_MAX];
};

static bool add_variant(struct variant *v, const char *column, const char *value)
{
    size_t len = strlen(v->text);
    mf_format(v->text + len, sizeof(v->text) - len, "%s%s:%s", len > 0 ? "+" : "", column, value);
    return true;
}

typedef bool (*read_fn)(const char *column, const char *cell, struct mf_shape *s, struct variant *v);

/* Accepts the names and the values of AITER's enum GateMode. */
static bool read_gate_mode(const char *column, const char *cell, struct mf_shape *s, struct variant *v)
{
    const char *name = strncmp(cell, "GateMode.", 9) == 0 ? cell + 9 : cell;
    if (strcasecmp(name, "separated") == 0)
        return true;
    if (!mf_is_name(name, 32))
        return false;
    if (strcasecmp(name, "interleave") != 0)
        return add_variant(v, column, name);
    if (s->gate_up == MF_GATE_UP_ANY)
        s->gate_up = MF_GATE_UP_INTERLEAVED;
    return s->gate_up == MF_GATE_UP_INTERLEAVED;
}

static bool read_limit(const char *column, const char *cell, struct mf_shape *s, struct variant *v)
{
    double limit;
    (void)column;
    (void)v;
    if (mf_parse_double(cell, &limit) < 0 || !(limit >= 0) || limit > 65536)
        return false;
    bool is_default = s->act_type == MF_ACT_SWIGLU && limit == 7;
    if (limit > 0 && !is_default)
        s->act_limit = (float)limit;
    return true;
}

static bool read_bias(const char *column, const char *cell, struct mf_shape *s, struct variant *v)
{
    bool bias;
    (void)column;
    (void)v;
    if (mf_parse_bool(cell, &bias) < 0)
        return false;
    s->has_b1 = s->has_b1 || bias;
    s->has_b2 = s->has_b2 || bias;
    return true;
}

/* The format of stage 2. It is stage 1's by default. */
static bool read_second_format(const char *column, const char *cell, struct mf_shape *s, struct variant *v)
{
    struct mf_shape second = *s;
    char first[64], text[64] = "";
    const char *why;
    mf_format(first, sizeof(first), "%.*s", (int)strlen(column) - 1, column);
    if (mf_shape_set(&second, first, cell, &why) < 0)
        return false;
    (void)mf_shape_get(&second, first, text, sizeof(text));
    return mf_shape_equal(&second, s) || add_variant(v, column, text);
}

static bool read_pad(const char *column, const char *cell, struct mf_shape *s, struct variant *v)
{
    int64_t pad;
    (void)s;
    if (mf_parse_i64(cell, 0, INT32_MAX, &pad) < 0)
        return false;
    return pad == 0 || add_variant(v, column, cell);
}

static bool read_flag(const char *column, const char *cell, struct mf_shape *s, struct variant *v)
{
    int64_t flag;
    (void)column;
    (void)s;
    (void)v;
    return mf_parse_i64(cell, -1, 1, &flag) == 0;
}

/* clang-format off */
static const struct {
    bool key;
    read_fn read;
    const char *expected;
} columns[MF_NEWER_N_] = {
    [MF_NEWER_GATE_MODE]        = {true,  read_gate_mode,     "GateMode.SEPARATED or GateMode.INTERLEAVE"},
    [MF_NEWER_SWIGLU_LIMIT]     = {true,  read_limit,         "a number from 0 to 65536"},
    [MF_NEWER_BIAS]             = {true,  read_bias,          "1 or 0"},
    [MF_NEWER_Q_DTYPE_A2]       = {true,  read_second_format, "a type as in q_dtype_a"},
    [MF_NEWER_Q_DTYPE_W2]       = {true,  read_second_format, "a type as in q_dtype_w"},
    [MF_NEWER_Q_TYPE2]          = {true,  read_second_format, "a type as in q_type"},
    [MF_NEWER_HIDDEN_PAD]       = {true,  read_pad,           "an integer >= 0"},
    [MF_NEWER_INTERMEDIATE_PAD] = {true,  read_pad,           "an integer >= 0"},
    [MF_NEWER_NT]               = {false, read_flag,          "1, 0 or -1"},
};
/* clang-format on */

bool mf_newer_is_key(const char *column)
{
    enum mf_newer i;
    return mf_newer_parse(column, &i) == 0 && columns[i].key;
}

void mf_table_read_newer(struct mf_table_reader *rd, struct mf_table_row *row)
{
    struct variant variant = {.text = ""};
    for (enum mf_newer i = 0; i < MF_NEWER_N_ && rd->t->op == MF_TABLE_FMOE; i++) {
        const char *name = mf_newer_name(i), *cell = mf_table_cell(rd, rd->newer[i]);
        if (*cell && !columns[i].read(name, cell, &row->shape, &variant))
            mf_table_bad_cell(rd, MF_PROBLEM_VALUE, name, cell, columns[i].expected);
    }
    if (!variant.text[0])
        return;
    row->variant = mf_table_keep(rd->t, variant.text);
    if (!row->variant)
        rd->r = -ENOMEM;
}
