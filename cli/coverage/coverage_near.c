/* Explains near misses. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/coverage/coverage.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

static const char *const extra_names[] = {MF_SHAPE_FORM, "class", "_tag", "spelling"};

const char *mf_near_name(int i)
{
    return i < MF_SHAPE_N_COLUMNS ? mf_shape_columns[i] : extra_names[i - MF_SHAPE_N_COLUMNS];
}

/* Removes the prefix that the column's values share: "torch.float8_e4m3fn" becomes "float8_e4m3fn". */
static void without_prefix(char *text)
{
    char *dot = strchr(text, '.');
    if (dot && (strncmp(text, "torch.", 6) == 0 || strncmp(text, "ActivationType.", 15) == 0 ||
                strncmp(text, "QuantType.", 10) == 0))
        memmove(text, dot + 1, strlen(dot));
}

void mf_near_values(const struct mf_coverage_near *n, const struct mf_device_class *class, int i,
                    char row[MF_NEAR_VALUE_MAX], char key[MF_NEAR_VALUE_MAX])
{
    char text[MF_DEVICE_CLASS_TEXT_MAX];

    mf_format(row, MF_NEAR_VALUE_MAX, "%s", "");
    mf_format(key, MF_NEAR_VALUE_MAX, "%s", "");
    if (i <= MF_SHAPE_N_COLUMNS) {
        (void)mf_shape_get(&n->row->shape, mf_near_name(i), row, MF_NEAR_VALUE_MAX);
        (void)mf_shape_get(&n->key, mf_near_name(i), key, MF_NEAR_VALUE_MAX);
        without_prefix(row);
        without_prefix(key);
    } else if (1u << i == MF_NEAR_CLASS) {
        mf_device_class_print(&n->row->class, text);
        mf_format(row, MF_NEAR_VALUE_MAX, "%s", text);
        mf_device_class_print(class, text);
        mf_format(key, MF_NEAR_VALUE_MAX, "%s", text);
    } else if (1u << i == MF_NEAR_TAG) {
        mf_format(row, MF_NEAR_VALUE_MAX, "%s", n->row->tag);
    } else {
        mf_format(row, MF_NEAR_VALUE_MAX, "unmatchable");
    }
}

/* ---- meanings ---- */

typedef bool (*match_fn)(const struct mf_shape *row, const struct mf_shape *key);

static bool is_multiple(int32_t a, int32_t b)
{
    return a > b ? a % b == 0 : b % a == 0;
}

/* Returns true if the row includes a fused shared expert and the key does not. Example: the row has 257
 * experts and topk 9, the key has 256 experts and topk 8. */
static bool fused_in_row(const struct mf_shape *row, const struct mf_shape *key)
{
    int32_t more = row->expert - key->expert;
    return more > 0 && more == row->topk - key->topk;
}

static bool fused_in_key(const struct mf_shape *row, const struct mf_shape *key)
{
    return fused_in_row(key, row);
}

static bool one_expert_apart(const struct mf_shape *row, const struct mf_shape *key)
{
    return row->expert - key->expert == 1 || key->expert - row->expert == 1;
}

static bool one_route_apart(const struct mf_shape *row, const struct mf_shape *key)
{
    return row->topk - key->topk == 1 || key->topk - row->topk == 1;
}

static bool another_tp(const struct mf_shape *row, const struct mf_shape *key)
{
    return is_multiple(row->inter_dim, key->inter_dim);
}

static bool another_ep(const struct mf_shape *row, const struct mf_shape *key)
{
    return is_multiple(row->expert, key->expert);
}

static bool another_split(const struct mf_shape *row, const struct mf_shape *key)
{
    return another_tp(row, key) && another_ep(row, key);
}

/* Servers may pad these sizes with zeros to a multiple of 256. */
static bool padded(const struct mf_shape *row, const struct mf_shape *key)
{
    int32_t model_dim = row->model_dim - key->model_dim, inter_dim = row->inter_dim - key->inter_dim;
    return model_dim >= 0 && model_dim < 256 && inter_dim >= 0 && inter_dim < 256;
}

static bool is_fp8(enum mf_dtype t)
{
    return t == MF_DTYPE_FP8_E4M3FN || t == MF_DTYPE_FP8_E4M3FNUZ;
}

static bool other_fp8(const struct mf_shape *row, const struct mf_shape *key)
{
    return is_fp8(row->q_dtype_w) && is_fp8(key->q_dtype_w) && is_fp8(row->q_dtype_a) &&
           is_fp8(key->q_dtype_a);
}

static bool chosen_activations(const struct mf_shape *row, const struct mf_shape *key)
{
    (void)row;
    return key->q_type == MF_QTYPE_PER_1X32;
}

static bool always(const struct mf_shape *row, const struct mf_shape *key)
{
    (void)row;
    (void)key;
    return true;
}

enum { /* a column's bit is 1 << its index in mf_shape_columns */
       MODEL_DIM = 1u << 1,
       INTER_DIM = 1u << 2,
       EXPERT = 1u << 3,
       TOPK = 1u << 4,
       ACT = 1u << 5,
       Q_DTYPE_A = 1u << 7,
       Q_DTYPE_W = 1u << 8,
       DOWEIGHT = 1u << 11,
};

#define PADDED "the rows have padded sizes, which a server that pads its weights passes"

/* The first matching entry applies. suggest_set: true if a server may pass the row's values. */
/* clang-format off */
static const struct {
    unsigned differs;
    match_fn match;
    bool suggest_set;
    const char *text;
} meanings[] = {
    {EXPERT | TOPK, fused_in_row, false,
     "A SHARED EXPERT IS FUSED into the routed experts in the table, but not in the call. If your server "
     "fuses it, use --fused-shared-experts yes. If it does not, it never uses these rows: tune the shapes "
     "that --untuned writes"},
    {EXPERT | TOPK, fused_in_key, false,
     "A SHARED EXPERT IS FUSED into the routed experts in the call, but not in the table. If your server "
     "does not fuse it, use --fused-shared-experts no. If it does, it never uses these rows: tune the shapes "
     "that --untuned writes"},
    {EXPERT, one_expert_apart, true,
     "only one side includes a shared expert in its experts, but topk is equal: a caller under expert "
     "parallelism may add the shared expert without a masked route (AITER subtracts it: topk - is_ep)"},
    {TOPK, one_route_apart, true,
     "topk differs by one route, but experts is equal: the masked route that AITER's callers add under "
     "expert parallelism and that AITER subtracts (topk - is_ep), or the route of a fused shared expert"},
    {INTER_DIM, padded, true, PADDED},
    {MODEL_DIM, padded, true, PADDED},
    {MODEL_DIM | INTER_DIM, padded, true, PADDED},
    {INTER_DIM, another_tp, false, "the rows are for another tensor parallel size; check --tp"},
    {EXPERT, another_ep, false, "the rows are for another expert parallel size; check --ep"},
    {INTER_DIM | EXPERT, another_split, false,
     "the rows are for another split over the ranks; check --tp and --ep"},
    {Q_DTYPE_A | Q_DTYPE_W, other_fp8, false,
     "the rows have the other fp8 format (gfx942: e4m3fnuz, other devices: e4m3fn); the formats never match"},
    {Q_DTYPE_A, chosen_activations, false,
     "the activation data type differs: with 1x32 weights AITER derives it from the weights, the activation "
     "function and the token count before padding (below 256 tokens it is mostly bf16)"},
    {ACT, always, false, "the activation function differs, so the rows compute another result"},
    {DOWEIGHT, always, false, "the rows apply the routing weight in the other stage"},
    {MF_NEAR_FORM, always, false,
     "the form of the layer differs: limits, biases, order of gate and up, or local experts of a rank"},
    {MF_NEAR_CLASS, always, false, "rows of one device class never serve another"},
    {MF_NEAR_TAG, always, false, "the look-up skips rows with a tag"},
    {MF_NEAR_SPELLING, always, false,
     "AITER compares the key as text and never matches this spelling; moefarm csv check names the cell"},
};
/* clang-format on */

void mf_near_explain(struct mf_coverage_near *n)
{
    n->meaning = "";
    n->suggest_set = false;
    for (size_t i = 0; i < MF_ARRAY_LEN(meanings); i++) {
        if (meanings[i].differs == n->differs && meanings[i].match(&n->row->shape, &n->key)) {
            n->meaning = meanings[i].text;
            n->suggest_set = meanings[i].suggest_set;
            return;
        }
    }
}
