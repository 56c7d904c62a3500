/* The encoded bits of every artifact, from the decoded references. */
#include <errno.h>
#include <string.h>

#include "common/cleanup.h"
#include "kernels/device.h"
#include "kernels/layout.h"
#include "kernels/quant.h"
#include "kernels/reference.h"

#define TAIL 0x7fffffff /* what lies beyond the sorted rows in use: no token, no expert */

int mf_reference_sort(const struct mf_shape *shape, const int32_t *ids, const float *weights, int32_t block_m,
                      const struct mf_tensor_ref *sorted)
{
    int32_t *out_ids = sorted->part[0], *experts = sorted->part[2], *num_valid = sorted->part[3];
    float *out_weights = sorted->part[1];
    int64_t rows = mf_padded_rows(shape, block_m), n = shape->token * shape->topk, at = 0;
    int32_t pad = mf_pack_id((int32_t)shape->token, shape->topk);
    _cleanup_(mf_freep) int64_t *next = calloc((size_t)shape->expert, sizeof(*next));
    if (!next)
        return -ENOMEM;
    for (int64_t i = 0; i < n; i++)
        next[ids[i]]++;
    for (int32_t e = 0; e < shape->expert; e++) {
        int64_t blocks = (next[e] + block_m - 1) / block_m;
        next[e] = at;
        for (int64_t b = 0; b < blocks; b++)
            experts[at / block_m + b] = e;
        at += blocks * block_m;
    }
    num_valid[0] = (int32_t)at;
    num_valid[1] = (int32_t)shape->token;
    for (int64_t p = 0; p < rows; p++) {
        out_ids[p] = p < at ? pad : TAIL;
        out_weights[p] = 0;
    }
    mf_poison_fill(MF_FORMAT_F32, out_weights + at, (size_t)(rows - at));
    for (int64_t b = at / block_m; b < rows / block_m; b++)
        experts[b] = TAIL;
    for (int64_t i = 0; i < n; i++) {
        int64_t p = next[ids[i]]++;
        out_ids[p] = mf_pack_id((int32_t)(i / shape->topk), (int32_t)(i % shape->topk));
        out_weights[p] = weights[i];
    }
    return 0;
}

static bool is_fp8(enum mf_format f)
{
    return f == MF_FORMAT_FP8FN || f == MF_FORMAT_FP8FNUZ;
}

const float *mf_reference_row(const struct mf_layer_data *data, const struct mf_reference *r,
                              const struct mf_artifact *a, int64_t row, float *ret_factor)
{
    const struct mf_shape *s = &data->shape;
    *ret_factor = a->tensor == MF_TENSOR_GW || a->tensor == MF_TENSOR_ZW ? data->weights[row] : 1;
    switch (a->tensor) {
    case MF_TENSOR_X:
        return is_fp8(a->format) && r->x ? r->x + row * s->model_dim : NULL;
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
        return r->g + row * mf_gemm1_cols(s);
    case MF_TENSOR_H:
        return (is_fp8(a->format) ? r->h : r->h_bf16) + row * s->inter_dim;
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
        return r->z + row * s->model_dim;
    case MF_TENSOR_Y:
        return r->y + row * s->model_dim;
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
    case MF_TENSOR_N_:
        break;
    }
    return NULL;
}

struct encode_job {
    const struct mf_layer_data *data;
    const struct mf_reference *r;
    const struct mf_artifact *a;
    const int32_t *sorted_ids; /* NULL: not in sorted order */
    int64_t in_use;            /* rows of sorted order */
    const struct mf_tensor_ref *to;
    int64_t rows, cols, scales; /* of the artifact */
    int error;
};

/* The row before encoding; x comes from its own bf16, so that any fp8 of it can be made. */
static void plain_row(const struct encode_job *j, int64_t source, float *out)
{
    if (j->a->tensor == MF_TENSOR_X) {
        mf_bf16_to_floats(j->data->x + source * j->cols, (size_t)j->cols, out);
        return;
    }
    struct mf_artifact unquantised = *j->a;
    unquantised.format = MF_FORMAT_F32;
    float factor;
    const float *row = mf_reference_row(j->data, j->r, &unquantised, source, &factor);
    for (int64_t i = 0; i < j->cols; i++)
        out[i] = row[i] * factor;
}

static void encode_row(const struct encode_job *j, int64_t p, const float *row)
{
    size_t n = (size_t)j->cols;
    float *scale = j->scales > 0 ? (float *)j->to->part[1] + p * j->scales : NULL;
    switch (j->a->format) {
    case MF_FORMAT_F32:
        memcpy((float *)j->to->part[0] + p * j->cols, row, n * sizeof(float));
        break;
    case MF_FORMAT_BF16:
        mf_bf16_from_floats(row, n, (uint16_t *)j->to->part[0] + p * j->cols);
        break;
    case MF_FORMAT_FP8FN:
    case MF_FORMAT_FP8FNUZ:
        if (j->a->scale == MF_SCALE_PER_1X128)
            mf_quant_row_1x128(j->a->format, row, n, (uint8_t *)j->to->part[0] + p * j->cols, scale);
        else
            scale[0] = mf_quant_row(j->a->format, row, n, (uint8_t *)j->to->part[0] + p * j->cols);
        break;
    case MF_FORMAT_INDEX:
    case MF_FORMAT_FP16:
    case MF_FORMAT_INT8:
    case MF_FORMAT_INT4:
    case MF_FORMAT_FP4:
    case MF_FORMAT_N_:
        break;
    }
}

static void poison_row(const struct encode_job *j, int64_t p)
{
    size_t bytes = j->a->format == MF_FORMAT_F32 ? 4 : j->a->format == MF_FORMAT_BF16 ? 2 : 1;
    mf_poison_fill(j->a->format, (uint8_t *)j->to->part[0] + (size_t)(p * j->cols) * bytes, (size_t)j->cols);
    if (j->scales > 0)
        mf_poison_fill(MF_FORMAT_F32, (float *)j->to->part[1] + p * j->scales, (size_t)j->scales);
}

/* Which row of the source is row p: a token for x and y, else a slot row; -1 for padding. */
static int64_t source_of(const struct encode_job *j, int64_t p)
{
    const struct mf_shape *s = &j->data->shape;
    if (!j->sorted_ids)
        return p;
    if (p >= j->in_use || mf_id_token(j->sorted_ids[p]) >= s->token)
        return -1;
    int64_t token = mf_id_token(j->sorted_ids[p]);
    return j->a->tensor == MF_TENSOR_X ? token : token * s->topk + mf_id_slot(j->sorted_ids[p]);
}

static void encode_thread(void *context, int thread, int n_threads)
{
    struct encode_job *j = context;
    _cleanup_(mf_freep) float *row = reallocarray(NULL, (size_t)j->cols, sizeof(*row));
    if (!row) {
        __atomic_store_n(&j->error, -ENOMEM, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t p = j->rows * thread / n_threads; p < j->rows * (thread + 1) / n_threads; p++) {
        int64_t source = source_of(j, p);
        if (source < 0) {
            poison_row(j, p);
        } else {
            plain_row(j, source, row);
            encode_row(j, p, row);
        }
    }
}

struct pack_job {
    const struct mf_layout *layout;
    int element_bytes;
    size_t n_experts, N, K;
    const uint8_t *from;
    uint8_t *to;
};

static void pack_thread(void *context, int thread, int n_threads)
{
    struct pack_job *j = context;
    size_t bytes = j->N * j->K * (size_t)j->element_bytes;
    for (size_t e = (size_t)thread; e < j->n_experts; e += (size_t)n_threads)
        mf_layout_pack(j->layout, j->element_bytes, j->N, j->K, j->from + e * bytes, j->to + e * bytes);
}

static int pack_weight(const struct mf_layer_data *d, const struct mf_artifact *a,
                       const struct mf_part *parts, int n_parts, const struct mf_tensor_ref *to)
{
    struct mf_artifact plain = mf_plain_w(&d->shape, a->tensor, a->order);
    if (plain.format != a->format || plain.scale != a->scale)
        return -EINVAL;
    bool first = a->tensor == MF_TENSOR_W1;
    size_t E = (size_t)d->shape.expert;
    struct pack_job j = {
        .layout = mf_layout_find(a->order),
        .element_bytes = parts[0].element_bytes,
        .n_experts = E,
        .N = (size_t)parts[0].rows / E,
        .K = (size_t)parts[0].cols,
        .from = first ? d->w1 : d->w2,
        .to = to->part[0],
    };
    mf_pool_run(pack_thread, &j, mf_pool_threads());
    if (n_parts > 1)
        memcpy(to->part[1], first ? d->w1_scale : d->w2_scale, (size_t)mf_part_bytes(&parts[1]));
    return 0;
}

static int encode(struct encode_job *j, const struct mf_part *parts, int n_parts,
                  const struct mf_tensor_ref *sorted)
{
    j->rows = parts[0].rows;
    j->cols = parts[0].cols;
    j->scales = n_parts > 1 ? parts[1].cols : 0;
    if (strcmp(j->a->order, "sorted") == 0) {
        if (!sorted)
            return -EINVAL;
        j->sorted_ids = sorted->part[0];
        j->in_use = ((const int32_t *)sorted->part[3])[0];
    }
    if (j->a->tensor == MF_TENSOR_X && j->a->format == MF_FORMAT_F32)
        return -EINVAL;
    /* a few rows are done before another thread has woken */
    int n_threads = j->rows * j->cols < 65536 ? 1 : mf_pool_threads();
    if (n_threads == 1)
        encode_thread(j, 0, 1);
    else
        mf_pool_run(encode_thread, j, n_threads);
    return j->error;
}

int mf_reference_artifact(const struct mf_layer_data *data, const struct mf_reference *r,
                          const struct mf_artifact *a, const struct mf_tensor_ref *sorted,
                          const struct mf_tensor_ref *to)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_artifact_parts(a, &data->shape, parts);
    if (n < 0)
        return n;
    if (a->zeroed) {
        for (int i = 0; i < n; i++)
            memset(to->part[i], 0, (size_t)mf_part_bytes(&parts[i]));
        return 0;
    }
    if (mf_artifact_is_weight(a))
        return pack_weight(data, a, parts, n, to);
    if (a->tensor == MF_TENSOR_SORTED)
        return mf_reference_sort(&data->shape, data->ids, data->weights, a->block, to);
    if (a->tensor == MF_TENSOR_TOPK) {
        memcpy(to->part[0], data->ids, (size_t)mf_part_bytes(&parts[0]));
        memcpy(to->part[1], data->weights, (size_t)mf_part_bytes(&parts[1]));
        return 0;
    }
    struct encode_job j = {.data = data, .r = r, .a = a, .to = to};
    return encode(&j, parts, n, sorted);
}
