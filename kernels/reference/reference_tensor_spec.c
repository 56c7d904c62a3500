/* Creates the encoded bits of every tensor spec from the dequantised references. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/device.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "kernels/core/quant.h"
#include "kernels/reference/reference.h"

#define TAIL 0x7fffffff /* id and expert in entries after the sorted rows; not a valid token or expert */

/* Assigns blocks of rows to the experts, in ascending order of the experts. experts[b] becomes the expert of
 * block b. next[e] must be zero and becomes the first row of expert e. Returns the number of rows. */
static int64_t lay_blocks(const struct mf_shape *shape, const int32_t *ids, int32_t block_m, int32_t *experts,
                          int64_t *next)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < shape->token * shape->topk; i++) {
        int32_t e = mf_shape_local_expert(shape, ids[i]);
        if (e >= 0)
            next[e]++;
    }
    for (int32_t e = 0; e < shape->expert; e++) {
        int64_t blocks = (next[e] + block_m - 1) / block_m;
        next[e] = rows;
        for (int64_t b = 0; b < blocks; b++)
            experts[rows / block_m + b] = e;
        rows += blocks * block_m;
    }
    return rows;
}

int mf_reference_sort(const struct mf_shape *shape, const int32_t *ids, const float *weights, int32_t block_m,
                      const struct mf_tensor_ref *sorted)
{
    int32_t *out_ids = sorted->part[0], *experts = sorted->part[2], *num_valid = sorted->part[3];
    float *out_weights = sorted->part[1];
    int64_t rows = mf_padded_rows(shape, block_m), n = shape->token * shape->topk;
    int32_t pad = mf_pack_id((int32_t)shape->token, shape->topk);
    _cleanup_(mf_freep) int64_t *next = calloc((size_t)shape->expert, sizeof(*next));
    if (!next)
        return -ENOMEM;
    int64_t at = lay_blocks(shape, ids, block_m, experts, next);
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
        int32_t e = mf_shape_local_expert(shape, ids[i]);
        if (e < 0)
            continue;
        int64_t p = next[e]++;
        out_ids[p] = mf_pack_id((int32_t)(i / shape->topk), (int32_t)(i % shape->topk));
        out_weights[p] = weights[i];
    }
    return 0;
}

int mf_reference_align(const struct mf_shape *shape, const int32_t *ids, int32_t block_m,
                       const struct mf_tensor_ref *aligned)
{
    int64_t n = shape->token * shape->topk, rows = mf_padded_rows(shape, block_m);
    int32_t *flat = aligned->part[0], *experts = aligned->part[1];
    _cleanup_(mf_freep) int64_t *next = calloc((size_t)shape->expert, sizeof(*next));
    if (!next)
        return -ENOMEM;
    for (int64_t p = 0; p < rows; p++)
        flat[p] = (int32_t)n;
    for (int64_t b = 0; b < rows / block_m; b++)
        experts[b] = -1;
    *(int32_t *)aligned->part[2] = (int32_t)lay_blocks(shape, ids, block_m, experts, next);
    for (int64_t i = 0; i < n; i++) {
        int32_t e = mf_shape_local_expert(shape, ids[i]);
        if (e >= 0)
            flat[next[e]++] = (int32_t)i;
    }
    return 0;
}

static bool is_scaled(const struct mf_tensor_spec *a)
{
    return a->scale != MF_SCALE_NONE;
}

const float *mf_reference_row(const struct mf_layer_data *data, const struct mf_reference *r,
                              const struct mf_tensor_spec *a, int64_t row, float *ret_factor)
{
    const struct mf_shape *s = &data->shape;
    *ret_factor = a->tensor == MF_TENSOR_GW || a->tensor == MF_TENSOR_ZW ? data->weights[row] : 1;
    switch (a->tensor) {
    case MF_TENSOR_X:
        return is_scaled(a) && r->x ? r->x + row * s->model_dim : NULL;
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
        return r->g + row * mf_gemm1_cols(s);
    case MF_TENSOR_H:
        return (is_scaled(a) ? r->h : r->h_bf16) + row * s->inter_dim;
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
        return r->z ? r->z + row * s->model_dim : NULL;
    case MF_TENSOR_Y:
        return r->y + row * s->model_dim;
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
    case MF_TENSOR_CALIB:
    case MF_TENSOR_ALIGNED:
    case MF_TENSOR_B1:
    case MF_TENSOR_B2:
    case MF_TENSOR_W1D:
    case MF_TENSOR_W2D:
    case MF_TENSOR_N_:
        break;
    }
    return NULL;
}

bool mf_reference_lacks_z(const struct mf_reference *r, const struct mf_tensor_spec *a)
{
    return !r->z && (a->tensor == MF_TENSOR_Z || a->tensor == MF_TENSOR_ZW);
}

struct encode_job {
    const struct mf_layer_data *data;
    const struct mf_reference *r;
    const struct mf_tensor_spec *a;
    const int32_t *sorted_ids; /* NULL if the rows of the tensor spec are not in sorted order */
    int64_t in_use;            /* number of rows in use, in sorted order */
    const struct mf_tensor_ref *to;
    struct mf_part parts[MF_PARTS_MAX];
    int n_parts;
    int64_t rows, cols; /* rows and columns of the tensor spec */
    int error;
};

/* Writes the row to `out` before it is encoded. x is read as bf16, so that it can be encoded in any format.
 */
static void plain_row(const struct encode_job *j, int64_t source, float *out)
{
    if (j->a->tensor == MF_TENSOR_X) {
        mf_bf16_to_floats(j->data->x + source * j->cols, (size_t)j->cols, out);
        return;
    }
    struct mf_tensor_spec unquantised = *j->a;
    unquantised.format = MF_FORMAT_F32;
    unquantised.scale = MF_SCALE_NONE;
    float factor;
    const float *row = mf_reference_row(j->data, j->r, &unquantised, source, &factor);
    for (int64_t i = 0; i < j->cols; i++)
        out[i] = row[i] * factor;
}

/* Encodes row p. A scale that all rows share goes to `shared` and is ignored, because write_shared has
 * written it before the threads started. */
static void encode_row(const struct encode_job *j, int64_t p, const float *row)
{
    float shared[4];
    void *scale = j->n_parts > 1 && j->parts[1].rows == j->rows ? mf_part_row(j->parts, j->to, 1, p) : shared;
    if (j->a->format == MF_FORMAT_F32)
        memcpy(mf_part_row(j->parts, j->to, 0, p), row, (size_t)j->cols * sizeof(float));
    else
        mf_reference_encode(j->r, j->a, row, (size_t)j->cols, mf_part_row(j->parts, j->to, 0, p), scale);
}

static void poison_row(const struct encode_job *j, int64_t p)
{
    bool is_value;
    for (int i = 0; i < j->n_parts; i++) {
        if (j->parts[i].rows == j->rows)
            mf_poison_fill_bytes(mf_part_poison(j->a, i, &is_value), j->parts[i].element_bytes,
                                 mf_part_row(j->parts, j->to, i, p), (size_t)j->parts[i].cols);
    }
}

/* Writes the parts that all rows share: per-tensor scale and global factor. */
static void write_shared(const struct encode_job *j)
{
    const struct mf_codec *c = mf_codec_find(j->a->format, j->a->scale);
    if (!c || c->scale_bytes == 0)
        return;
    if (c->group_rows == 0)
        mf_codec_group_scale(c, j->a->tensor == MF_TENSOR_X ? j->r->x_amax : j->r->h_amax, 1, j->to->part[1]);
    if (c->global)
        *(float *)j->to->part[2] = mf_reference_global(j->r, j->a);
}

/* Returns the source of row p: a token for x and y, a slot row for other tensors, or -1 for padding and for
 * slots of remote experts. */
static int64_t source_of(const struct encode_job *j, int64_t p)
{
    const struct mf_shape *s = &j->data->shape;
    if (!j->sorted_ids)
        return strcmp(j->a->order, "slot") == 0 && mf_shape_local_expert(s, j->data->ids[p]) < 0 ? -1 : p;
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
    const struct mf_shape *shape;
    const struct mf_tensor_spec *from_a, *to_a;
    const struct mf_tensor_ref *from, *to;
    size_t expert_bytes[MF_PARTS_MAX];
    int n_parts;
};

static struct mf_tensor_ref expert_of(const struct pack_job *j, const struct mf_tensor_ref *w, size_t e)
{
    struct mf_tensor_ref ref = {0};
    for (int i = 0; i < j->n_parts; i++)
        ref.part[i] = (uint8_t *)w->part[i] + e * j->expert_bytes[i];
    return ref;
}

static void pack_thread(void *context, int thread, int n_threads)
{
    struct pack_job *j = context;
    for (size_t e = (size_t)thread; e < (size_t)j->shape->expert; e += (size_t)n_threads) {
        struct mf_tensor_ref from = expert_of(j, j->from, e), to = expert_of(j, j->to, e);
        (void)mf_layout_convert_weight(j->shape, j->from_a, j->to_a, &from, &to);
    }
}

static int pack_weight(const struct mf_layer_data *d, const struct mf_tensor_spec *a,
                       const struct mf_part *parts, int n_parts, const struct mf_tensor_ref *to)
{
    struct mf_tensor_spec plain = mf_plain_w(&d->shape, a->tensor, "row");
    if (plain.format != a->format || plain.scale != a->scale)
        return -EINVAL;
    struct pack_job j = {
        .shape = &d->shape,
        .from_a = &plain,
        .to_a = a,
        .from = a->tensor == MF_TENSOR_W1 ? &d->w1 : &d->w2,
        .to = to,
        .n_parts = n_parts,
    };
    for (int i = 0; i < n_parts; i++)
        j.expert_bytes[i] = (size_t)(mf_part_bytes(&parts[i]) / d->shape.expert);
    mf_pool_run(pack_thread, &j, mf_pool_threads());
    return 0;
}

struct decode_job {
    const struct mf_layer_data *data;
    const struct mf_tensor_spec *a;
    uint16_t *to;
    size_t N, K;
    int error;
};

/* Dequantises an expert's rows to bf16 in `row` order, then converts them to the expert's layout. */
static void decode_thread(void *context, int thread, int n_threads)
{
    struct decode_job *j = context;
    const struct mf_layout *row = mf_layout_find("row"), *layout = mf_layout_find(j->a->order);
    _cleanup_(mf_freep) float *values = reallocarray(NULL, j->K, sizeof(*values));
    _cleanup_(mf_freep) uint16_t *plain = reallocarray(NULL, j->N * j->K, sizeof(*plain));
    if (!values || !plain) {
        __atomic_store_n(&j->error, -ENOMEM, __ATOMIC_RELAXED);
        return;
    }
    for (int32_t e = thread; e < j->data->shape.expert; e += n_threads) {
        for (size_t n = 0; n < j->N; n++) {
            mf_reference_weight_row(j->data, mf_encoded_weight_of(j->a->tensor), e, (int64_t)n, values);
            mf_bf16_from_floats(values, j->K, plain + n * j->K);
        }
        mf_layout_convert(row, layout, 16, j->N, j->K, plain, j->to + (size_t)e * j->N * j->K);
    }
}

static int decode_weight(const struct mf_layer_data *d, const struct mf_tensor_spec *a,
                         const struct mf_part *part, const struct mf_tensor_ref *to)
{
    const struct mf_tensor_ref *w = mf_encoded_weight_of(a->tensor) == MF_TENSOR_W1 ? &d->w1 : &d->w2;
    if (!w->part[0]) /* the weights were generated on the device and the host has no copy */
        return -EINVAL;
    struct decode_job j = {.data = d,
                           .a = a,
                           .to = to->part[0],
                           .N = (size_t)(part->rows / d->shape.expert),
                           .K = (size_t)part->cols};
    mf_pool_run(decode_thread, &j, mf_pool_threads());
    return j.error;
}

static int encode(struct encode_job *j, const struct mf_part *parts, int n_parts,
                  const struct mf_tensor_ref *sorted)
{
    memcpy(j->parts, parts, (size_t)n_parts * sizeof(*parts));
    j->n_parts = n_parts;
    j->rows = parts[0].rows;
    j->cols = mf_tensor_spec_cols(j->a, &j->data->shape);
    if (strcmp(j->a->order, "sorted") == 0) {
        if (!sorted)
            return -EINVAL;
        j->sorted_ids = sorted->part[0];
        j->in_use = ((const int32_t *)sorted->part[3])[0];
    }
    if (j->a->tensor == MF_TENSOR_X && j->a->format == MF_FORMAT_F32)
        return -EINVAL;
    write_shared(j);
    mf_pool_run(encode_thread, j, mf_pool_threads_for(j->rows * j->cols));
    return j->error;
}

int mf_reference_tensor_spec(const struct mf_layer_data *data, const struct mf_reference *r,
                             const struct mf_tensor_spec *a, const struct mf_tensor_ref *sorted,
                             const struct mf_tensor_ref *to)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &data->shape, parts);
    if (n < 0)
        return n;
    if (a->zeroed) {
        for (int i = 0; i < n; i++)
            memset(to->part[i], 0, (size_t)mf_part_bytes(&parts[i]));
        return 0;
    }
    if (mf_tensor_spec_is_weight(a))
        return pack_weight(data, a, parts, n, to);
    if (mf_tensor_spec_is_decoded(a))
        return decode_weight(data, a, &parts[0], to);
    if (a->tensor == MF_TENSOR_SORTED)
        return mf_reference_sort(&data->shape, data->ids, data->weights, a->block, to);
    if (a->tensor == MF_TENSOR_ALIGNED)
        return mf_reference_align(&data->shape, data->ids, a->block, to);
    if (a->tensor == MF_TENSOR_CALIB) {
        struct mf_tensor_spec x = mf_plain_x(&data->shape), h = mf_plain_h(&data->shape, 1);
        ((float *)to->part[0])[0] = mf_reference_global(r, &x);
        ((float *)to->part[0])[1] = mf_reference_global(r, &h);
        return 0;
    }
    if (a->tensor == MF_TENSOR_TOPK) {
        memcpy(to->part[0], data->ids, (size_t)mf_part_bytes(&parts[0]));
        memcpy(to->part[1], data->weights, (size_t)mf_part_bytes(&parts[1]));
        return 0;
    }
    if (a->tensor == MF_TENSOR_B1 || a->tensor == MF_TENSOR_B2) {
        memcpy(to->part[0], a->tensor == MF_TENSOR_B1 ? data->b1 : data->b2,
               (size_t)mf_part_bytes(&parts[0]));
        return 0;
    }
    struct encode_job j = {.data = data, .r = r, .a = a, .to = to};
    return encode(&j, parts, n, sorted);
}
