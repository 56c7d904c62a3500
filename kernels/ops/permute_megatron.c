#include "kernels/ops/permute_megatron.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/device.h"

static int64_t capacity(const struct mf_megatron *m)
{
    return m->num_out_tokens / m->experts;
}

static int64_t aligned(const struct mf_megatron *m, int64_t n)
{
    return (n + m->align - 1) / m->align * m->align;
}

static const char *find_error(const struct mf_megatron *m)
{
    if (m->tokens < 0 || m->experts < 1)
        return "routing_map: expected [tokens, experts] with at least 1 expert";
    if (m->align < 1)
        return "align_size: expected 1 or more";
    if (m->num_out_tokens < -1)
        return "num_out_tokens: expected the number of rows to keep, or -1 for all";
    if (m->drop_and_pad && (m->num_out_tokens < 0 || m->num_out_tokens % m->experts != 0))
        return "num_out_tokens: with drop_and_pad expected a multiple of the number of experts";
    if (m->drop_and_pad && capacity(m) > m->tokens)
        return "num_out_tokens: with drop_and_pad expected a capacity of at most the number of tokens, "
               "because "
               "padding rows are tokens that are not routed to the expert";
    if (m->drop_and_pad && m->align != 1)
        return "align_size: expected 1 with drop_and_pad; align the capacity instead";
    if ((int64_t)m->experts * (m->tokens + m->align) > INT32_MAX)
        return "routing_map: tokens times experts exceed the range of int32; split the batch";
    return NULL;
}

/* Counts for each expert the routes that get a row. */
static void count_kept(const struct mf_megatron *m, int64_t *per_expert)
{
    int64_t left = m->num_out_tokens < 0 || m->drop_and_pad ? INT64_MAX : m->num_out_tokens;
    memset(per_expert, 0, (size_t)m->experts * sizeof(*per_expert));
    for (int64_t t = 0; t < m->tokens; t++) {
        for (int32_t e = 0; e < m->experts; e++)
            per_expert[e] += m->routing_map[t * m->experts + e] != 0;
    }
    for (int32_t e = 0; e < m->experts; e++) {
        int64_t limit = m->drop_and_pad ? capacity(m) : left;
        per_expert[e] = MF_MIN(per_expert[e], limit);
        left -= per_expert[e];
    }
}

int64_t mf_megatron_rows(const struct mf_megatron *m, const char **ret_why)
{
    int64_t rows = 0, left = m->num_out_tokens < 0 ? INT64_MAX : m->num_out_tokens;
    *ret_why = find_error(m);
    if (*ret_why)
        return -EINVAL;
    if (m->drop_and_pad)
        return m->num_out_tokens;
    for (int32_t e = 0; e < m->experts; e++) {
        int64_t n = 0;
        for (int64_t t = 0; t < m->tokens; t++)
            n += m->routing_map[t * m->experts + e] != 0;
        n = MF_MIN(n, left);
        left -= n;
        rows += aligned(m, n);
    }
    return rows;
}

static void map_row(const struct mf_megatron *m, const struct mf_megatron_map *out, int64_t row,
                    int64_t token, int32_t expert)
{
    bool routed = token >= 0 && m->routing_map[token * m->experts + expert] != 0;
    out->token_of[row] = (int32_t)token;
    if (out->probs)
        out->probs[row] = !routed ? 0 : m->probs ? m->probs[token * m->experts + expert] : 1;
    if (routed)
        out->row_of[token * m->experts + expert] = (int32_t)row;
}

/* Maps the rows of one expert: its first `kept` routed tokens, then padding up to row `end`. */
static void map_expert(const struct mf_megatron *m, const struct mf_megatron_map *out, int32_t e, int64_t row,
                       int64_t kept, int64_t end)
{
    for (int64_t t = 0; t < m->tokens && kept > 0; t++) {
        if (m->routing_map[t * m->experts + e] == 0)
            continue;
        map_row(m, out, row++, t, e);
        kept--;
    }
    for (int64_t t = 0; m->drop_and_pad && row < end; t++) {
        if (m->routing_map[t * m->experts + e] == 0)
            map_row(m, out, row++, t, e);
    }
    for (; row < end; row++)
        map_row(m, out, row, -1, e);
}

int64_t mf_megatron_map(const struct mf_megatron *m, const struct mf_megatron_map *out, const char **ret_why)
{
    int64_t row = 0, moved = 0;
    *ret_why = find_error(m);
    if (*ret_why)
        return -EINVAL;
    count_kept(m, out->per_expert);
    for (int64_t i = 0; i < m->tokens * m->experts; i++)
        out->row_of[i] = -1;
    for (int32_t e = 0; e < m->experts; e++) {
        int64_t kept = out->per_expert[e], n = m->drop_and_pad ? capacity(m) : aligned(m, kept);
        map_expert(m, out, e, row, kept, row + n);
        out->pad_offsets[e] = moved;
        out->per_expert[e] = n;
        moved += n - kept;
        row += n;
    }
    return row;
}

struct padding {
    const struct mf_megatron *m;
    const struct mf_megatron_map *map;
    const struct mf_row_copy *copy;
    int64_t rows;
    bool stream;
};

/* Fills each padding row with zeros or with the row of a token that is not routed to the expert. */
static void pad_thread(void *context, int thread, int n_threads)
{
    const struct padding *p = context;
    mf_copy_fn copy = mf_row_copier(p->stream);
    int64_t row = 0;
    for (int32_t e = 0; e < p->m->experts; e++) {
        int64_t end = row + p->map->per_expert[e];
        for (; row < end; row++) {
            int64_t token = p->map->token_of[row];
            char *to = (char *)p->copy->to + (size_t)row * p->copy->bytes;
            if (row % n_threads != thread || (token >= 0 && p->map->row_of[token * p->m->experts + e] == row))
                continue;
            if (token < 0)
                memset(to, 0, p->copy->bytes);
            else
                copy(to, (const char *)p->copy->from + (size_t)token * p->copy->bytes, p->copy->bytes);
        }
    }
    mf_row_copy_fence();
}

void mf_megatron_permute(const struct mf_megatron *m, const struct mf_megatron_map *map, int64_t rows,
                         const struct mf_row_copy *copy, bool stream, int threads)
{
    struct mf_permute p = {
        .row_of = map->row_of,
        .tokens = m->tokens,
        .topk = m->experts,
        .last = rows,
        .copies = {*copy},
        .n_copies = 1,
        .stream = stream,
    };
    struct padding padding = {m, map, copy, rows, stream};
    mf_permute_rows(&p, threads);
    if (m->drop_and_pad || m->align > 1)
        mf_pool_run(pad_thread, &padding, threads);
}

void mf_megatron_pad_map(uint8_t *map, int64_t tokens, int32_t experts, int32_t multiple)
{
    for (int32_t e = 0; e < experts; e++) {
        int64_t n = 0;
        for (int64_t t = 0; t < tokens; t++)
            n += map[t * experts + e] != 0;
        int64_t missing = (multiple - n % multiple) % multiple;
        for (int64_t t = 0; t < tokens && missing > 0; t++) {
            if (map[t * experts + e] != 0)
                continue;
            map[t * experts + e] = 1;
            missing--;
        }
    }
}

void mf_te_index_map(const int32_t *row_of, int64_t tokens, int32_t topk, int64_t num_out_tokens,
                     int32_t *map)
{
    for (int32_t j = 0; j < topk; j++) {
        for (int64_t t = 0; t < tokens; t++) {
            int32_t row = row_of[t * topk + j];
            map[j * tokens + t] = num_out_tokens >= 0 && row >= num_out_tokens ? -1 : row;
        }
    }
}
