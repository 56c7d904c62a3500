#include "cli/support/shape_arg.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/text.h"

#define N_COLUMNS (MF_SHAPE_N_COLUMNS + 1)

static const char *column_name(int i)
{
    return i < MF_SHAPE_N_COLUMNS ? mf_shape_columns[i] : MF_SHAPE_FORM;
}

static int column_index(const char *name)
{
    for (int i = 0; i < N_COLUMNS; i++) {
        if (!strcmp(column_name(i), name))
            return i;
    }
    return -1;
}

/* Sets one column from "column=value", or from the value at that position in a whole row. */
static int set_item(struct mf_shape_pattern *p, int position, char *item, char *why, size_t why_cap)
{
    char *equals = strchr(item, '=');
    const char *value = equals ? equals + 1 : item, *reason;
    int column = position;

    if (equals) {
        *equals = '\0';
        column = column_index(item);
    }
    if (column < 0) {
        mf_format(
            why, why_cap,
            "'%s': unknown column; the columns are token, model_dim, inter_dim, expert, topk, act_type, "
            "dtype, q_dtype_a, q_dtype_w, q_type, use_g1u1, doweight_stage1, form",
            item);
        return -EINVAL;
    }
    if (column >= N_COLUMNS) {
        mf_format(why, why_cap, "too many values; a whole row has twelve values and an optional form");
        return -EINVAL;
    }
    if (mf_shape_set(&p->shape, column_name(column), value, &reason) < 0) {
        mf_format(why, why_cap, "%s '%s': expected %s", column_name(column), value, reason);
        return -EINVAL;
    }
    p->set[column] = true;
    return 0;
}

int mf_shape_pattern_parse(const char *text, struct mf_shape_pattern *ret, char *why, size_t why_cap)
{
    struct mf_shape_pattern p = {0};
    bool named = strchr(text, '=') != NULL;
    int position = 0;

    for (const char *at = text;; at++, position++) {
        size_t len = strcspn(at, ",");
        char item[96];

        if (len >= sizeof(item)) {
            mf_format(why, why_cap, "a value is too long");
            return -EINVAL;
        }
        memcpy(item, at, len);
        item[len] = '\0';
        if (named && !strchr(item, '=')) {
            mf_format(why, why_cap, "'%s': expected column=value pairs or a whole row of twelve values",
                      item);
            return -EINVAL;
        }
        if (set_item(&p, position, item, why, why_cap) < 0)
            return -EINVAL;
        at += len;
        if (!*at)
            break;
    }
    if (!named && position == MF_SHAPE_N_COLUMNS - 1)
        p.set[MF_SHAPE_N_COLUMNS] = true; /* a whole row of twelve values has an empty form */
    else if (!named && position != MF_SHAPE_N_COLUMNS) {
        mf_format(why, why_cap,
                  "%d values; a whole row has twelve (or name the columns: token=4,q_type=per_Token)",
                  position + 1);
        return -EINVAL;
    }
    *ret = p;
    return 0;
}

bool mf_shape_pattern_match(const struct mf_shape_pattern *p, const struct mf_shape *shape)
{
    for (int i = 0; i < N_COLUMNS; i++) {
        char want[MF_SHAPE_FORM_MAX], have[MF_SHAPE_FORM_MAX];

        if (!p->set[i])
            continue;
        if (mf_shape_get(&p->shape, column_name(i), want, sizeof(want)) < 0 ||
            mf_shape_get(shape, column_name(i), have, sizeof(have)) < 0 || strcmp(want, have) != 0)
            return false;
    }
    return true;
}

/* "torch.float8_e4m3fn" → "fp8_e4m3fn", "torch.bfloat16" → "bf16". */
static const char *brief_dtype(enum mf_dtype dtype)
{
    switch (dtype) {
    case MF_DTYPE_BF16:
        return "bf16";
    case MF_DTYPE_FP16:
        return "fp16";
    case MF_DTYPE_FP8_E4M3FN:
        return "fp8_e4m3fn";
    case MF_DTYPE_FP8_E4M3FNUZ:
        return "fp8_e4m3fnuz";
    case MF_DTYPE_INT8:
        return "int8";
    case MF_DTYPE_INT4:
        return "int4";
    case MF_DTYPE_FP4X2:
        return "fp4";
    case MF_DTYPE_N_:
        break;
    }
    return "?";
}

static const char *after_last_dot(const char *text)
{
    const char *dot = strrchr(text, '.');

    return dot ? dot + 1 : text;
}

void mf_shape_brief_layer_model(const struct mf_shape *s, char buf[MF_SHAPE_BRIEF_MAX])
{
    char quant[96], act[32] = "", form[MF_SHAPE_FORM_MAX] = "";

    if (s->q_type == MF_QTYPE_NO)
        mf_format(quant, sizeof(quant), "%s", brief_dtype(s->dtype));
    else if (s->q_dtype_a == s->q_dtype_w)
        mf_format(quant, sizeof(quant), "%s %s", brief_dtype(s->q_dtype_w),
                  after_last_dot(mf_qtype_name(s->q_type)));
    else
        mf_format(quant, sizeof(quant), "a:%s w:%s %s", brief_dtype(s->q_dtype_a), brief_dtype(s->q_dtype_w),
                  after_last_dot(mf_qtype_name(s->q_type)));
    if (s->act_type != MF_ACT_SILU)
        mf_format(act, sizeof(act), " %s", after_last_dot(mf_act_name(s->act_type)));
    (void)mf_shape_get(s, MF_SHAPE_FORM, form, sizeof(form));
    mf_format(buf, MF_SHAPE_BRIEF_MAX, "H%" PRId32 " I%" PRId32 " E%" PRId32 " k%" PRId32 " %s%s%s%s%s%s",
              s->model_dim, s->inter_dim, s->expert, s->topk, quant, act, s->use_g1u1 ? "" : " g1u0",
              s->doweight_stage1 ? " dw1" : "", form[0] ? " " : "", form);
}

void mf_shape_brief(const struct mf_shape *shape, char buf[MF_SHAPE_BRIEF_MAX])
{
    char model[MF_SHAPE_BRIEF_MAX];

    mf_shape_brief_layer_model(shape, model);
    mf_format(buf, MF_SHAPE_BRIEF_MAX, "T%" PRId64 " %s", shape->token, model);
}
