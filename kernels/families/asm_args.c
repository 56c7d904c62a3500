#include "kernels/families/asm_args.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"

struct block {
    unsigned char *at;
    const char *bad; /* name of the first number that does not fit 32 bits */
};

static void put_address(struct block *b, int slot, const void *address)
{
    uint64_t value = (uintptr_t)address;
    memcpy(b->at + (size_t)slot * MF_ASM_SLOT, &value, sizeof(value));
}

static void put_number(struct block *b, int slot, const char *name, int64_t value)
{
    uint32_t narrow = (uint32_t)value;
    if ((value < 0 || value > UINT32_MAX) && !b->bad)
        b->bad = name;
    memcpy(b->at + (size_t)slot * MF_ASM_SLOT, &narrow, sizeof(narrow));
}

/* Returns the value of ActivationType in ROCm/aiter, aiter_enum.h. No kernel uses the value No (-1). */
static int64_t act_number(enum mf_act act)
{
    static const int numbers[] = {
        [MF_ACT_SILU] = 0, [MF_ACT_GELU] = 1, [MF_ACT_SWIGLU] = 2, [MF_ACT_SITUV2] = 3, [MF_ACT_NO] = -1,
    };
    return (uint32_t)numbers[act];
}

/* Returns the bytes of `cols` weight elements. */
static int64_t weight_bytes(const struct mf_asm_call *c, int64_t cols)
{
    return cols * c->w_bits / 8;
}

static int64_t gate_expert_bytes(const struct mf_asm_call *c)
{
    return weight_bytes(c, c->model_dim) * c->inter_dim * (c->gated ? 2 : 1);
}

int64_t mf_asm_inter_dim(int64_t w1_dim2, int64_t w2_dim1, int64_t w2_dim2)
{
    return w1_dim2 > 0 ? w2_dim2 * (w2_dim1 / w1_dim2) : 0;
}

static int64_t tiles(const struct mf_asm_kernel *k, const struct mf_asm_call *c)
{
    return (c->inter_dim + k->sub_n - 1) / k->sub_n;
}

int64_t mf_asm_persistent(const struct mf_asm_kernel *k, int32_t cu_num)
{
    return k->ps ? (int64_t)k->tg_num_per_cu * cu_num : 0;
}

int64_t mf_asm_total_tgs(const struct mf_asm_kernel *k, const struct mf_asm_call *c)
{
    int64_t deno = tiles(k, c);
    return deno > 0 ? mf_asm_persistent(k, c->cu_num) / deno * deno : 0;
}

int mf_asm_one_block(const struct mf_asm_kernel *k, const struct mf_asm_call *c,
                     unsigned char block[MF_ASM_ONE_BYTES], const char **ret_slot)
{
    struct block b = {.at = block};
    memset(block, 0, MF_ASM_ONE_BYTES);
    put_address(&b, MF_ASM_ONE_O, c->out);
    put_address(&b, MF_ASM_ONE_X, c->x);
    put_address(&b, MF_ASM_ONE_GU, c->w1);
    put_address(&b, MF_ASM_ONE_XC, c->num_valid);
    put_address(&b, MF_ASM_ONE_D, c->w2);
    put_address(&b, MF_ASM_ONE_XQ, c->x_scale);
    put_address(&b, MF_ASM_ONE_GUQ, c->w1_scale);
    put_address(&b, MF_ASM_ONE_DQ, c->w2_scale);
    put_address(&b, MF_ASM_ONE_SMQ, c->smooth_scale);
    put_address(&b, MF_ASM_ONE_STP, c->sorted_ids);
    put_address(&b, MF_ASM_ONE_SW, c->sorted_weights);
    put_address(&b, MF_ASM_ONE_SEP, c->sorted_experts);
    put_number(&b, MF_ASM_ONE_DIM, "dim", c->model_dim);
    put_number(&b, MF_ASM_ONE_INTER_DIM, "inter_dim", c->inter_dim);
    put_number(&b, MF_ASM_ONE_TOKEN_CNT, "token_cnt", c->token);
    put_number(&b, MF_ASM_ONE_EPRT_CNT, "eprt_cnt", c->expert);
    put_number(&b, MF_ASM_ONE_XS, "Xs", c->x_stride * c->x_bytes);
    put_number(&b, MF_ASM_ONE_GUS, "GUs", weight_bytes(c, c->model_dim));
    put_number(&b, MF_ASM_ONE_DS, "Ds", weight_bytes(c, c->inter_dim));
    put_number(&b, MF_ASM_ONE_OS, "Os", (int64_t)c->model_dim * c->out_bytes);
    put_number(&b, MF_ASM_ONE_EGUS, "eGUs", gate_expert_bytes(c));
    put_number(&b, MF_ASM_ONE_EDS, "eDs", weight_bytes(c, c->inter_dim) * c->model_dim);
    put_number(&b, MF_ASM_ONE_EGUQS, "eGUQs", c->w1_scale_stride * c->scale_bytes);
    put_number(&b, MF_ASM_ONE_EDQS, "eDQs", c->w2_scale_stride * c->scale_bytes);
    put_number(&b, MF_ASM_ONE_ESMQS, "eSMQs", 4 * (int64_t)c->inter_dim);
    put_number(&b, MF_ASM_ONE_TOPK, "topk", c->topk);
    put_number(&b, MF_ASM_ONE_TOTAL_TGS, "total_tgs", mf_asm_total_tgs(k, c));
    put_number(&b, MF_ASM_ONE_PS_DENO, "ps_deno", tiles(k, c));
    if (b.bad)
        *ret_slot = b.bad;
    return b.bad ? -ERANGE : 0;
}

int mf_asm_stage1_block(const struct mf_asm_call *c, unsigned char block[MF_ASM_STAGE1_BYTES],
                        const char **ret_slot)
{
    struct block b = {.at = block};
    memset(block, 0, MF_ASM_STAGE1_BYTES);
    put_address(&b, MF_ASM_S1_O, c->out);
    put_address(&b, MF_ASM_S1_X, c->x);
    put_address(&b, MF_ASM_S1_GU, c->w1);
    put_address(&b, MF_ASM_S1_XC, c->num_valid);
    put_address(&b, MF_ASM_S1_XQ, c->x_scale);
    put_address(&b, MF_ASM_S1_GUQ, c->w1_scale);
    put_address(&b, MF_ASM_S1_SMQ, c->smooth_scale);
    put_address(&b, MF_ASM_S1_STP, c->sorted_ids);
    put_address(&b, MF_ASM_S1_SEP, c->sorted_experts);
    put_number(&b, MF_ASM_S1_DIM, "dim", c->model_dim);
    put_number(&b, MF_ASM_S1_HIDDEN_DIM, "hidden_dim", c->inter_dim);
    put_number(&b, MF_ASM_S1_TOKEN_CNT, "token_cnt", c->token);
    put_number(&b, MF_ASM_S1_EPRT_CNT, "eprt_cnt", c->expert);
    put_number(&b, MF_ASM_S1_XS, "Xs", c->x_stride * c->x_bytes);
    put_number(&b, MF_ASM_S1_GUS, "GUs", weight_bytes(c, c->model_dim));
    put_number(&b, MF_ASM_S1_OS, "Os", (int64_t)c->topk * c->inter_dim * c->out_bytes);
    put_number(&b, MF_ASM_S1_EGUS, "eGUs", gate_expert_bytes(c));
    put_number(&b, MF_ASM_S1_EGUQS, "eGUQs", c->w1_scale_stride * c->scale_bytes);
    put_number(&b, MF_ASM_S1_ESMQS, "eSMQs", 4 * (int64_t)c->inter_dim);
    put_number(&b, MF_ASM_S1_TOPK, "topk", c->topk);
    put_number(&b, MF_ASM_S1_SPLITK, "splitk", c->ksplit);
    put_number(&b, MF_ASM_S1_ACTIVATION, "activation", act_number(c->act));
    put_address(&b, MF_ASM_S1_SW, c->sorted_weights);
    if (b.bad)
        *ret_slot = b.bad;
    return b.bad ? -ERANGE : 0;
}

struct mf_asm_grid mf_asm_grid_of(const struct mf_asm_kernel *k, const struct mf_asm_call *c, bool switch_xy)
{
    struct mf_asm_grid g = {(uint32_t)tiles(k, c), (uint32_t)c->n_blocks, 1};
    if (k->kind == MF_ASM_STAGE1) {
        g.z = 1u << c->ksplit;
        return g;
    }
    if (k->flat == 1)
        return (struct mf_asm_grid){g.x, (uint32_t)c->topk, (uint32_t)c->token};
    if (mf_asm_total_tgs(k, c) > 0)
        return (struct mf_asm_grid){(uint32_t)mf_asm_persistent(k, c->cu_num), 1, 1};
    return switch_xy ? (struct mf_asm_grid){g.y, g.x, 1} : g;
}

struct load {
    int64_t rounds, idle;
};

static struct load load_of(const struct mf_asm_kernel *k, const struct mf_asm_call *c)
{
    int64_t groups = c->inter_dim / k->sub_n * c->n_blocks;
    int64_t rounds = (groups + c->cu_num - 1) / c->cu_num;
    return (struct load){rounds, rounds * c->cu_num - groups};
}

static bool is_candidate(const struct mf_asm_kernel *k, const struct mf_asm_wish *w,
                         const struct mf_asm_call *c)
{
    return strcmp(k->arch, w->arch) == 0 && k->kind == w->kind && k->vskip == w->vskip && k->smf == 0 &&
           k->flat == 0 && k->sub_m == w->block_m && c->inter_dim % k->sub_n == 0;
}

const struct mf_asm_kernel *mf_asm_pick(const struct mf_asm_manifest *m, const struct mf_asm_wish *w,
                                        const struct mf_asm_call *c)
{
    const struct mf_asm_kernel *best = NULL;
    struct load least = {0};
    for (size_t i = 0; i < m->n && c->cu_num > 0; i++) {
        const struct mf_asm_kernel *k = &m->kernels[i];
        if (!is_candidate(k, w, c))
            continue;
        struct load l = load_of(k, c);
        if (best && (l.rounds > least.rounds || (l.rounds == least.rounds && l.idle > least.idle) ||
                     (l.rounds == least.rounds && l.idle == least.idle && k->ps <= best->ps)))
            continue;
        best = k;
        least = l;
    }
    return best;
}
