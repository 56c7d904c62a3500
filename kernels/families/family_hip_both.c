#include "kernels/families/family_hip_both.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/family_hip_whole.h"

#define STAGES_MIN 3
#define ALIGN      256 /* alignment of workspace sections in bytes */

bool mf_hip_both_takes(const char *family, const struct mf_device_info *device, const struct mf_shape *s,
                       enum mf_hip_format *ret_format, struct mf_refusal *no)
{
    /* this family and family two_stage support the same weight formats */
    if (!mf_hip_family_takes("two_stage", device, s, ret_format, no))
        return false;
    if (strcmp(device->class.gfx, "sm_90") != 0)
        mf_refuse(no, "arch", "family %s needs WGMMA and TMA loads (sm_90); the device is %s", family,
                  device->class.gfx);
    else if (*ret_format != MF_HIP_BF16 && *ret_format != MF_HIP_FP8_BLOCK)
        mf_refuse(no, "q_type",
                  "q_type is %s; h is quantised within one tile, which requires 1x128 scales or bf16 without "
                  "quantisation",
                  mf_qtype_name(s->q_type));
    else
        return !mf_hip_hopper_refuses_x(s, no);
    return false;
}

/* Returns the i-th candidate, or false if i is out of range. The order is: all variants with weights in
 * checkpoint layout, all variants with panel128, then both lists again for the variants that zero y. */
static bool nth(const struct mf_hip_both_family *f, enum mf_hip_format format, size_t i,
                struct mf_hip_both *ret)
{
    size_t zeroing = 0, n = f->n_variants;
    for (size_t v = 0; v < n; v++)
        zeroing += f->variants[v].zeroes;
    *ret = (struct mf_hip_both){.family = f, .format = format};
    if (i < 2 * n) {
        ret->v = f->variants[i % n];
        ret->sliced = i >= n;
        return true;
    }
    i -= 2 * n;
    if (i >= 2 * zeroing)
        return false;
    ret->zeroes = true;
    ret->sliced = i >= zeroing;
    for (size_t v = 0, left = i % zeroing + 1; left > 0; v++) {
        left -= f->variants[v].zeroes;
        ret->v = f->variants[v];
    }
    return true;
}

void mf_hip_both_name(const struct mf_hip_both *b, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const struct mf_hip_both_variant *v = &b->v;
    char format[MF_FORMAT_WORD_MAX];
    const char *w1 = mf_hip_weights_word(s, MF_TENSOR_W1, b->sliced);
    mf_cpu_format_word(s, format);
    mf_format(buf, MF_STEP_NAME_MAX, "%s_%s_%s_m%d_n%d_b%s%s%s%s%s%s", b->family->word, format,
              mf_cpu_act_word(s), v->block_m, v->block_n, v->turns ? "t" : "", v->swapped ? "s" : "",
              s->doweight_stage1 ? "_w" : "", *w1 ? "_" : "", w1, b->zeroes ? "_zero" : "");
}

struct mf_hip_stage mf_hip_both_stage(const struct mf_hip_both *b, const struct mf_shape *s, int stage)
{
    enum mf_hip_out h = s->q_type == MF_QTYPE_NO ? MF_HIP_TO_H : MF_HIP_TO_HQ;
    return (struct mf_hip_stage){stage,        mf_hip_stage_halves(stage, s), b->v.block_m,
                                 b->v.block_n, stage == 1 ? h : MF_HIP_TO_Y,  false,
                                 b->sliced};
}

/* Returns the bytes of shared memory outside the ring buffer. */
static int extra_bytes(const struct mf_hip_both *b, const struct mf_shape *s)
{
    const struct mf_hip_hopper core = {b->v.turns, b->v.swapped};
    const struct mf_hip_stage up = mf_hip_both_stage(b, s, 1), down = mf_hip_both_stage(b, s, 2);
    return MF_MAX(mf_hip_hopper_out_bytes(core, &up, s), mf_hip_hopper_out_bytes(core, &down, s)) +
           (b->family->lds ? b->family->lds(s, b->v.block_m) : 0) + (b->zeroes ? MF_HIP_HOPPER_ZEROS : 0);
}
static int stage_bytes(const struct mf_hip_both *b)
{
    return mf_hip_hopper_stage_bytes(b->v.block_m, b->v.block_n, b->format);
}
static int stages_of(const struct mf_hip_both *b, const struct mf_device_info *device,
                     const struct mf_shape *s)
{
    int fits = (mf_hip_machine_of(device)->shared_block - extra_bytes(b, s)) / stage_bytes(b);
    return MF_MIN(fits, MF_HIP_HOPPER_STAGES);
}

static bool is_legal(const struct mf_hip_both *b, const struct mf_device_info *device,
                     const struct mf_shape *s, struct mf_refusal *no)
{
    const struct mf_hip_both_variant *v = &b->v;
    const struct mf_hip_stage up = mf_hip_both_stage(b, s, 1), down = mf_hip_both_stage(b, s, 2);
    int columns = mf_hip_stage_columns(&up);
    no->rule = NULL;
    if (b->sliced && !(mf_hip_may_panel128(s, MF_TENSOR_W1, no) && mf_hip_may_panel128(s, MF_TENSOR_W2, no)))
        return false;
    if (v->swapped && !mf_hip_by_block(b->format))
        mf_refuse(
            no, "format",
            "cores bs and bts require 1x128 scales, which they apply to the partial sums of each stage");
    else if (mf_hip_by_block(b->format) && columns % 128)
        mf_refuse(no, "divisibility",
                  "a tile has %d columns (remainder %d): groups of 128 columns must not cross tiles", columns,
                  columns % 128);
    else if (columns > s->inter_dim || mf_hip_stage_columns(&down) > s->model_dim)
        mf_refuse(no, "divisibility",
                  "tiles of %d and %d columns are wider than inter_dim %d or model_dim %d", columns,
                  mf_hip_stage_columns(&down), s->inter_dim, s->model_dim);
    else if (mf_hip_by_block(b->format) && up.halves == 2 && s->inter_dim % 128)
        mf_refuse(no, "divisibility",
                  "inter_dim %d is not a multiple of 128 (remainder %d): with 128x128 scales, the rows of up "
                  "must start a new scale block",
                  s->inter_dim, s->inter_dim % 128);
    else if (stages_of(b, device, s) < STAGES_MIN)
        mf_refuse(no, "lds",
                  "%d stages of %d weight rows and %d token rows and %d further bytes exceed the %d bytes of "
                  "shared memory of a block",
                  STAGES_MIN, v->block_n, v->block_m, extra_bytes(b, s),
                  mf_hip_machine_of(device)->shared_block);
    return !no->rule;
}

int mf_hip_both_enumerate(const struct mf_hip_both_family *f, const struct mf_device_info *device,
                          const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal no;
    enum mf_hip_format format;
    struct mf_hip_both b;
    if (!f->takes(device, shape, &format, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    for (size_t i = 0; nth(f, format, i, &b); i++) {
        if (b.zeroes && shape->token < f->zero_from)
            continue;
        const struct mf_step step = f->describe(&b, shape);
        int r = is_legal(&b, device, shape, &no)
                    ? offer->step(offer, &step)
                    : offer->reject(offer, f->name, step.name, no.rule, "%s", no.reason);
        if (r < 0)
            return r;
    }
    return 0;
}

void mf_hip_both_code(const struct mf_hip_both *b, const struct mf_device_info *device,
                      const struct mf_shape *s, struct mf_code *ret)
{
    *ret = (struct mf_code){.source = b->family->source, .function = b->family->function};
    mf_hip_whole_define(ret, s, b->format);
    mf_code_define(ret, "MF_BM=%d", b->v.block_m);
    mf_code_define(ret, "MF_BN=%d", b->v.block_n);
    mf_code_define(ret, "MF_STAGES=%d", stages_of(b, device, s));
    mf_code_define(ret, "MF_PINGPONG=%d", b->v.turns);
    mf_code_define(ret, "MF_SWAP=%d", b->v.swapped);
    if (b->zeroes)
        mf_code_define(ret, "MF_ZERO");
}

int mf_hip_both_find(const struct mf_hip_both_family *f, const struct mf_device_info *device,
                     const struct mf_shape *s, const char *name, struct mf_hip_both *ret)
{
    struct mf_refusal no;
    enum mf_hip_format format;
    char own[MF_STEP_NAME_MAX];
    size_t length = strlen(f->word);
    if (strncmp(name, f->word, length) != 0 || name[length] != '_')
        return -EINVAL;
    if (!f->takes(device, s, &format, &no))
        return -ENOTSUP;
    for (size_t i = 0; nth(f, format, i, ret); i++) {
        mf_hip_both_name(ret, s, own);
        if (strcmp(own, name) == 0)
            return is_legal(ret, device, s, &no) ? 0 : -ENOTSUP;
    }
    return -ENOTSUP;
}

uint32_t mf_hip_both_lds(const struct mf_hip_both *b, const struct mf_device_info *device,
                         const struct mf_shape *s)
{
    return (uint32_t)(stages_of(b, device, s) * stage_bytes(b) + extra_bytes(b, s));
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t mf_hip_both_lay_out(const uint64_t *bytes, int n, uint64_t *ret_offsets)
{
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        ret_offsets[i] = at;
        at += align_up(bytes[i]);
    }
    return at + ALIGN;
}

uint8_t *mf_hip_both_workspace(const struct mf_launch *l)
{
    return (uint8_t *)(uintptr_t)align_up((uintptr_t)l->workspace);
}

uint64_t mf_hip_both_h(const struct mf_hip_both *b, const struct mf_shape *s, uint64_t *ret_scale)
{
    uint64_t rows = (uint64_t)mf_padded_rows(s, b->v.block_m), I = (uint64_t)s->inter_dim;
    bool quantised = s->q_type != MF_QTYPE_NO;
    *ret_scale = quantised ? rows * ((I + 127) / 128) * 4 : 0;
    return rows * I * (quantised ? 1 : 2);
}
