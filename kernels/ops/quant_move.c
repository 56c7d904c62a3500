#include "kernels/ops/quant_move.h"

#include <string.h>

#include "kernels/core/device.h"
#include "kernels/core/quant.h"

struct job {
    const struct mf_permute *p;
    const struct mf_unpermute *u;
    const struct mf_quantised_rows *from;
    size_t width;
    uint16_t *to;
    float *workspace;
};

/* Returns the floats in a thread's workspace: a row of decoded values and a row of sums, without shared cache
 * lines. */
static size_t floats_of_thread(size_t width)
{
    return 2 * ((width + 15) / 16 * 16);
}

size_t mf_quant_move_workspace(size_t width, int threads)
{
    return floats_of_thread(width) * sizeof(float) * (size_t)threads;
}

static void decode(const struct job *j, int64_t row, float *to)
{
    const struct mf_quantised_rows *f = j->from;
    mf_codec_decode_row(f->codec, f->q, f->scale, f->global, (size_t)row, j->width, to);
}

static void permute_thread(void *context, int thread, int n_threads)
{
    const struct job *j = context;
    const struct mf_permute *p = j->p;
    float *floats = j->workspace + floats_of_thread(j->width) * (size_t)thread;
    for (int64_t t = p->tokens * thread / n_threads; t < p->tokens * (thread + 1) / n_threads; t++) {
        const uint16_t *made = NULL;
        for (int64_t i = t * p->topk; i < (t + 1) * p->topk; i++) {
            int64_t row = p->row_of[i];
            if (row < p->first || row >= p->last)
                continue;
            uint16_t *to = j->to + (size_t)(row - p->first) * j->width;
            if (made) {
                memcpy(to, made, j->width * sizeof(*to));
            } else {
                decode(j, t, floats);
                mf_bf16_from_floats(floats, j->width, to);
                made = to;
            }
            if (p->out_probs)
                p->out_probs[row - p->first] = p->probs[i];
        }
    }
}

static void unpermute_thread(void *context, int thread, int n_threads)
{
    const struct job *j = context;
    const struct mf_unpermute *u = j->u;
    float *row = j->workspace + floats_of_thread(j->width) * (size_t)thread;
    float *sum = row + floats_of_thread(j->width) / 2;
    for (int64_t t = u->tokens * thread / n_threads; t < u->tokens * (thread + 1) / n_threads; t++) {
        memset(sum, 0, j->width * sizeof(*sum));
        for (int64_t i = t * u->topk; i < (t + 1) * u->topk; i++) {
            if (u->row_of[i] < u->first || u->row_of[i] >= u->last)
                continue;
            float weight = u->probs ? u->probs[i] : 1;
            decode(j, u->row_of[i] - u->first, row);
            for (size_t c = 0; c < j->width; c++)
                sum[c] += weight * row[c];
        }
        mf_bf16_from_floats(sum, j->width, u->to + (size_t)t * j->width);
    }
}

void mf_permute_decoded(const struct mf_permute *p, const struct mf_quantised_rows *from, size_t width,
                        uint16_t *to, float *workspace, int threads)
{
    struct job j = {.p = p, .from = from, .width = width, .to = to, .workspace = workspace};
    mf_pool_run(permute_thread, &j, threads);
}

void mf_unpermute_decoded(const struct mf_unpermute *u, const struct mf_quantised_rows *from,
                          float *workspace, int threads)
{
    struct job j = {.u = u, .from = from, .width = u->width, .workspace = workspace};
    mf_pool_run(unpermute_thread, &j, threads);
}
