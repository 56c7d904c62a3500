/* Tests TMA loads of weights: the host's tensor map (mf_hip_stage_map_weights) and the kernel's coordinates
 * (kernels/gpu/src/tma_coord.h) together address every element where the layout puts it. */
#include <stdint.h>

#include "common/base/cleanup.h"
#include "kernels/core/layout.h"
#include "kernels/families/family_hip_stage.h"
#include "support/mf_check.h"

typedef int32_t i32;
typedef uint32_t u32;
#define MF_DEVICE static
#include "kernels/gpu/src/tma_coord.h"

#define BF16 "ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define FP8 \
    "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128,1,0"
#define TOKEN \
    "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0"
#define PLAIN "ActivationType.Gelu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,0,0"

/* A device that keeps the tensor description it receives. */
struct keeping {
    struct mf_device device;
    struct mf_tma_tensor tensor;
};

static int keep(struct mf_device *d, const struct mf_tma_tensor *t, void *ret)
{
    (void)ret;
    ((struct keeping *)d)->tensor = *t;
    return 0;
}

static const struct mf_device_ops ops = {.kind = "hip", .tensor_map = keep};

/* clang-format off */
static const struct {
    const char *shape;
    int stage, block_n, bits;
    bool sliced;
} rows[] = {
    {"64,512,256,3,2," BF16,                    1, 128, 16, false},
    {"64,512,256,3,2," BF16,                    1, 256, 16, true},
    {"64,512,256,3,2," BF16,                    1, 128, 16, true},
    {"64,512,256,3,2," BF16 ",gate_up:interleaved", 1, 256, 16, false},
    {"64,512,256,3,2," BF16 ",gate_up:tiled",   1, 128, 16, false},
    {"64,512,256,3,2," BF16 ",gate_up:tiled",   1, 256, 16, false},
    {"64,512,256,3,2," BF16 ",gate_up:tiled",   2, 256, 16, false},
    {"64,512,256,3,2," PLAIN,                   1, 128, 16, false},
    {"64,512,256,3,2," PLAIN,                   1, 256, 16, true},
    {"64,512,256,3,2," BF16,                    2, 128, 16, false},
    {"64,512,256,3,2," BF16,                    2, 256, 16, true},
    {"64,512,256,3,2," FP8,                     1, 256,  8, false},
    {"64,512,256,3,2," FP8,                     1, 256,  8, true},
    {"64,512,256,3,2," FP8,                     2, 256,  8, true},
    {"64,512,256,3,2," FP8,                     2, 128,  8, false},
    {"64,512,256,3,2," BF16,                    1, 128,  4, false},
    {"64,512,256,3,2," BF16,                    2, 512,  4, false},
    {"64,512,256,3,2," BF16 ",gate_up:tiled",   1, 128,  4, false},
    {"64,512,256,3,2," BF16 ",gate_up:interleaved", 1, 256,  4, false},
    {"64,512,256,3,2," TOKEN ",gate_up:tiled",  1, 256,  8, false},
    {"64,512,256,3,2," TOKEN ",gate_up:interleaved", 1, 128,  8, false},
};
/* clang-format on */

/* Returns the byte offset of element k in column c of the box. Groups of eight gate columns alternate with
 * groups of eight up columns; `half` chooses between them. */
static uint64_t element_at(const struct mf_tma_tensor *t, const struct mf_tma_coord *at, uint64_t k, int half,
                           int c)
{
    const uint64_t place[5] = {(uint64_t)at->c0 + k, (uint64_t)(at->c1 + c % 8), (uint64_t)(at->c2 + half),
                               (uint64_t)at->c3 + (uint64_t)(c / 8) % t->box[3],
                               (uint64_t)at->c4 + (uint64_t)(c / 8) / t->box[3]};
    uint64_t ret = 0;
    for (int d = 0; d < t->rank; d++) {
        ck_assert_uint_lt(place[d], t->length[d]);
        ret += place[d] * t->stride[d];
    }
    return ret;
}

MF_TEST(each_element, .rows = MF_ARRAY_LEN(rows))
{
    struct keeping keeping = {.device = {.ops = &ops}};
    struct mf_hip_weights w;
    struct mf_shape s;
    ck_assert_int_eq(mf_shape_parse(rows[_i].shape, &s), 0);
    const struct mf_hip_stage st = {.stage = rows[_i].stage,
                                    .halves = mf_hip_stage_halves(rows[_i].stage, &s),
                                    .block_m = 64,
                                    .block_n = rows[_i].block_n,
                                    .sliced = rows[_i].sliced};
    const enum mf_tensor tensor = st.stage == 1 ? MF_TENSOR_W1 : MF_TENSOR_W2;
    const struct mf_layout *l = mf_layout_find(mf_hip_weights_order(&s, tensor, st.sliced));
    const int bits = rows[_i].bits, columns = mf_hip_stage_columns(&st);
    const size_t K = (size_t)mf_hip_stage_length(&st, &s), width = (size_t)mf_hip_stage_width(&st, &s),
                 N = (size_t)st.halves * width, of_byte = bits == 4 ? 2 : 1;

    ck_assert(mf_layout_legal(l, bits, N, K));
    ck_assert_int_eq(mf_hip_stage_map_weights(&st, &s, &keeping.device, bits, NULL, &w), 0);
    const struct mf_tma_tensor *t = &keeping.tensor;
    ck_assert_uint_eq(t->box[1] * t->box[2] * t->box[3] * t->box[4], (uint32_t)rows[_i].block_n);
    const size_t slice_k = t->box[0] * of_byte;

    for (int expert = 0; expert < s.expert; expert++) {
        for (int col = 0; col < (int)width; col += columns) {
            for (size_t slice = 0; slice < K / slice_k; slice++) {
                const struct mf_tma_coord at = mf_tma_coord_of(&w, (i32)slice, col, expert);
                for (int half = 0; half < st.halves; half++) {
                    for (int c = 0; c < columns; c++) {
                        for (size_t k = 0; k < slice_k; k += slice_k / 2) {
                            const size_t n = (size_t)half * width + (size_t)(col + c);
                            const size_t want = (size_t)expert * N * K +
                                                mf_layout_index(l, bits, N, K, n, slice * slice_k + k);
                            ck_assert_uint_eq(element_at(t, &at, k / of_byte, half, c),
                                              want * (size_t)bits / 8);
                        }
                    }
                }
            }
        }
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
