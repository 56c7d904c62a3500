/* Inner loops of the CPU kernels, one table per instruction set. No function allocates or writes to its
 * inputs. Results of two instruction sets differ only by the order of summation. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/codec.h"
#include "kernels/core/device.h"

/* One tile of a grouped GEMM: C[rows, n] = A[rows, k] times n weight rows of one expert.
 *
 * A is bf16 as written by pack(), with a row stride of lda elements. With scales, the products of every 128 K
 * elements are summed, and each such sum is multiplied by a_scale and w_scale. Without scales, C is the plain
 * sum and the caller applies the scales. The columns of C from n up to a multiple of 16 are padding and may
 * be overwritten. */
struct mf_tile {
    const uint16_t *a;
    size_t lda;
    int rows;
    int n; /* a multiple of the panel */
    /* Format of w: bf16, fp8fn, fp8fnuz, or int8 if ops.int8 is true. For int8, A holds bytes with a row
     * stride of 2·lda bytes. */
    enum mf_format format;
    int panel;        /* panel width of w: 1 (row), 16 or 32 (kernels/core/layout.h) */
    const void *w;    /* first of the n weight rows, or the panel that contains it */
    const void *next; /* weights read after this tile, for prefetching; may be NULL */
    size_t fetch;     /* prefetch distance of the weights in bytes, used if ops.fetches is true */
    size_t k;
    /* K elements per piece for bf16 tiles of many rows, a multiple of 128; 0: K is not split */
    size_t block_k;
    float *c;
    size_t ldc;           /* row stride, at least n rounded up to 16 */
    const float *a_scale; /* [rows, ceil(k/128)]; NULL: no scales */
    size_t lda_scale;
    const float *w_scale; /* scales of the 128 weight rows that contain row 0 of the tile */
    size_t ldw_scale;     /* stride to the next 128 weight rows */
    int n_offset;         /* index of row 0 within those 128 rows */
    /* used by stream() instead of `format`: */
    const struct mf_codec *codec;
    const void *group_scale; /* group scales of the first row, if the codec folds scales */
    size_t ld_group_scale;   /* bytes to the next row's scales */
};

/* Returns the address to prefetch, t->fetch bytes after p in w. An address beyond the end of the tile is
 * replaced by the corresponding address in the next tile or, if t->next is NULL, by p. */
static inline const char *mf_prefetch_address(const struct mf_tile *t, const char *p, const char *end)
{
    const char *at = p + t->fetch, *next = t->next;
    return at < end ? at : next ? next + (at - end) : p;
}

/* True if decoding folds the scales into the bf16 values, as for scales of groups along K. Other scales are
 * applied to the sums. */
static inline bool mf_codec_folds(const struct mf_codec *c)
{
    return c->scale == MF_SCALE_PER_1X32 || c->scale == MF_SCALE_PER_1X16;
}

/* Arguments of decode(), which decodes the K elements [k0, k_end) of n rows of one expert's weight to bf16 in
 * panels of 16: [n/16][K/2][16][2]. Zeros fill the rows up to a multiple of 16 and the second half of an
 * incomplete pair of K elements. k0 is a multiple of the codec's group and of 8. */
struct mf_decode {
    const struct mf_codec *codec;
    int panel;         /* panel width of w: 1 (row), 16, 32 */
    const void *w;     /* the first row, or the panel that contains it */
    const void *scale; /* scales of the first row, if the codec folds scales */
    size_t ld_scale;   /* bytes to the next row's scales */
    int n;
    size_t K, k0, k_end;
    uint16_t *to;
};

struct mf_cpu_ops {
    enum mf_isa isa;
    /* true: the loops prefetch weights; false: arithmetic is so slow that prefetching does not help */
    bool fetches;
    void (*decode)(const struct mf_decode *d);
    /* Decodes a row of n activations to bf16 and applies folded scales. If n is odd, writes a zero after the
     * row. */
    void (*unpack)(const struct mf_codec *c, const void *from, const void *scale, size_t n, uint16_t *to);
    void (*gemm)(const struct mf_tile *t);
    bool int8; /* gemm() supports int8 x int8 */
    /* GEMM for up to stream_rows rows of A, on quantised weights that gemm() does not support. Each weight is
     * decoded in registers, and scales of groups along K are applied to the groups' sums. A is bf16, in the
     * order that order() writes. stream is NULL if the instruction set has no such GEMM. */
    void (*stream)(const struct mf_tile *t);
    int stream_rows;
    /* Reorders a row of A to the order in which stream() reads the K elements of these weights. */
    void (*order)(const struct mf_codec *w, uint16_t *a, size_t k);
    /* Converts n elements of a row to the A operand of gemm(). NaN stays NaN. */
    void (*pack)(enum mf_format format, const void *from, size_t n, uint16_t *to);
    /* h = act(g·weight, u·weight), rounded to bf16, with the shape's activation. */
    void (*activate)(const struct mf_shape *shape, const float *g, const float *u, float weight, size_t n,
                     uint16_t *h);
    /* c[i] *= row · col[i], or row alone if col is NULL. */
    void (*scale)(float *c, size_t n, float row, const float *col);
    /* sum[i] += weight · c[i] */
    void (*add)(float *sum, const float *c, size_t n, float weight);
    /* y[i] = bf16(sum over j < k of weights[j] · z[j·ldz + i]). If weights is NULL, all weights are 1. */
    void (*combine)(const uint16_t *z, size_t ldz, int k, const float *weights, size_t n, uint16_t *y);
    void (*to_bf16)(const float *from, size_t n, uint16_t *to);
};

/* Returns the table of an instruction set, or the table for plain C if the build has none for it. */
const struct mf_cpu_ops *mf_cpu_ops(enum mf_isa isa);

extern const struct mf_cpu_ops mf_cpu_ops_c, mf_cpu_ops_avx2, mf_cpu_ops_avx512;
