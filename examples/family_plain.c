/* A kernel family in a shared object: the whole layer in plain loops, for small bf16 layers.
 *
 *     cc -std=gnu17 -O3 -march=native -shared -fPIC -I. $(pkg-config --cflags libcjson) \
 *         examples/family_plain.c -o plain.so -lm
 *     moefarm-worker --family-so ./plain.so
 *     moefarm run-config --family-so ./plain.so tuned_fmoe.csv
 *
 * It uses headers of this project and links none of its code. The contract of each call is in
 * kernels/core/family.h. */
#include "kernels/core/family.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STEP "plain_layer"
/* maximum multiply-adds of a layer; for larger layers, other families are faster */
#define WORK_MAX (1ll << 24)

const struct mf_family *mf_family_entry(void); /* the only exported symbol */

struct mf_kernel {
    struct mf_shape s;
};

static float from_bf16(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

static uint16_t to_bf16(float f) /* rounds to nearest, ties to even; does not handle NaN */
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

static float dot(const float *a, const uint16_t *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * from_bf16(b[i]);
    return sum;
}

/* Returns NULL if the shape is legal. Otherwise returns the name of the rule, with the reason in why. */
static const char *refuse(const struct mf_shape *s, char *why, size_t cap)
{
    long long work = (long long)s->token * s->topk * 3 * s->model_dim * s->inter_dim;
    if (s->q_type != MF_QTYPE_NO || s->dtype != MF_DTYPE_BF16 || s->q_dtype_w != MF_DTYPE_BF16) {
        (void)snprintf(why, cap,
                       "only unquantised bf16 is supported, the layer is quantised or has another dtype");
        return "dtype";
    }
    if (s->act_type != MF_ACT_SILU || !s->use_g1u1 || s->doweight_stage1) {
        (void)snprintf(
            why, cap,
            "only silu(gate) * up, weighted at the end, is supported; the layer has activation number %d, "
            "use_g1u1 %d and doweight_stage1 %d",
            (int)s->act_type, s->use_g1u1, s->doweight_stage1);
        return "form";
    }
    if (s->act_limit > 0 || s->has_b1 || s->has_b2) {
        (void)snprintf(why, cap,
                       "clamping and biases are not supported; the layer has limit %g, b1 %d and b2 %d",
                       (double)s->act_limit, s->has_b1, s->has_b2);
        return "form";
    }
    if (work > WORK_MAX) {
        (void)snprintf(why, cap, "%lld multiply-adds; the limit of plain loops on one thread is %lld", work,
                       WORK_MAX);
        return "work";
    }
    return NULL;
}

static struct mf_tensor_spec tensor_spec(enum mf_tensor tensor, enum mf_format format, const char *order)
{
    struct mf_tensor_spec a = {.tensor = tensor, .format = format, .scale = MF_SCALE_NONE};
    (void)snprintf(a.order, sizeof(a.order), "%s", order);
    return a;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *s,
                     struct mf_offer *offer)
{
    char why[MF_REASON_MAX];
    const char *rule = refuse(s, why, sizeof(why));
    (void)device;
    if (rule)
        return offer->reject(offer, f->name, STEP, rule, "%s", why);
    struct mf_step step = {
        .name = STEP,
        .family = "plain",
        .stage = MF_STAGE_ONE,
        .covers = MF_OP_BIT(MF_OP_SORT) | MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) |
                  MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_WEIGHT) |
                  MF_OP_BIT(MF_OP_COMBINE),
        .n_needs = 4,
        .needs = {tensor_spec(MF_TENSOR_X, MF_FORMAT_BF16, "token"),
                  tensor_spec(MF_TENSOR_TOPK, MF_FORMAT_INDEX, "token"),
                  tensor_spec(MF_TENSOR_W1, MF_FORMAT_BF16, "row"),
                  tensor_spec(MF_TENSOR_W2, MF_FORMAT_BF16, "row")},
        .n_gives = 1,
        .gives = {tensor_spec(MF_TENSOR_Y, MF_FORMAT_BF16, "token")},
        .workspace_bytes = (uint64_t)(2 * s->model_dim + s->inter_dim) * sizeof(float),
        .flops = 6.0 * (double)s->token * s->topk * s->model_dim * s->inter_dim,
        .bytes = 6.0 * s->model_dim * s->inter_dim, /* lower bound: the weights of one expert */
    };
    return offer->step(offer, &step);
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *s,
                     const char *name, struct mf_kernel **ret)
{
    char why[MF_REASON_MAX];
    (void)f, (void)device;
    if (strcmp(name, STEP) != 0)
        return -EINVAL;
    if (refuse(s, why, sizeof(why)))
        return -ENOTSUP;
    struct mf_kernel *k = malloc(sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->s = *s;
    *ret = k;
    return 0;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->s;
    const uint16_t *x = l->needs[0].part[0], *w1 = l->needs[2].part[0], *w2 = l->needs[3].part[0];
    const int32_t *ids = l->needs[1].part[0];
    const float *weights = l->needs[1].part[1];
    int H = s->model_dim, I = s->inter_dim;
    float *row = l->workspace, *sum = row + H, *h = sum + H;
    for (int64_t t = 0; t < s->token; t++) {
        for (int c = 0; c < H; c++) {
            row[c] = from_bf16(x[t * H + c]);
            sum[c] = 0;
        }
        for (int64_t slot = t * s->topk; slot < (t + 1) * s->topk; slot++) {
            const uint16_t *gate = w1 + (size_t)ids[slot] * 2 * (size_t)I * (size_t)H,
                           *up = gate + (size_t)I * (size_t)H;
            const uint16_t *down = w2 + (size_t)ids[slot] * (size_t)H * (size_t)I;
            for (int i = 0; i < I; i++) {
                float g = dot(row, gate + (size_t)i * (size_t)H, H),
                      u = dot(row, up + (size_t)i * (size_t)H, H);
                h[i] = g / (1 + expf(-g)) * u;
            }
            for (int c = 0; c < H; c++)
                sum[c] += weights[slot] * dot(h, down + (size_t)c * (size_t)I, I);
        }
        for (int c = 0; c < H; c++)
            ((uint16_t *)l->gives[0].part[0])[t * H + c] = to_bf16(sum[c]);
    }
    return 0;
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    free(k);
    return NULL;
}

const struct mf_family *mf_family_entry(void)
{
    static const struct mf_family family = {
        .api = MF_FAMILY_API,
        .name = "plain",
        .device_kind = "cpu",
        .enumerate = enumerate,
        .open = open_step,
        .launch = launch,
        .close = close_step,
    };
    return &family;
}
