/* The CPU kernels' inner loops, once for each instruction set. Nothing here allocates, and no call writes to its
 * inputs. Results of two instruction sets differ by the order of sums only. */
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
 * A is bf16 as pack() made it, a row every lda elements. With scales, products are summed over each 128 of K and
 * the sum times a_scale and w_scale is added up; without, C is the plain sum and scaling is the caller's. C's
 * padding up to a multiple of 16 columns may be written. */
struct mf_tile {
    const uint16_t *a;
    size_t lda;
    int rows;
    int n; /* a multiple of the panel */
    enum mf_format
        format;    /* of w: bf16, fp8fn, fp8fnuz; int8 where ops.int8, A then as bytes, a row every 2·lda */
    int panel;     /* 1 (row), 16, 32: kernels/core/layout.h */
    const void *w; /* the first of the n rows, or its panel */
    const void *next; /* what is read after this tile, to be fetched ahead; may be NULL */
    size_t fetch;     /* bytes ahead of the loads that weights are fetched, where ops.fetches */
    size_t k;
    size_t block_k; /* K of bf16 is cut into pieces of so many when rows are many; a multiple of 128 */
    float *c;
    size_t ldc;           /* at least n rounded up to 16 */
    const float *a_scale; /* [rows, ceil(k/128)]; NULL: no scales */
    size_t lda_scale;
    const float *w_scale; /* of the 128 rows that hold row 0 of the tile */
    size_t ldw_scale;     /* to the next 128 rows */
    int n_offset;         /* of row 0 within those 128 */
    /* for stream() in place of format */
    const struct mf_codec *codec;
    const void *group_scale; /* of the first row, where the codec folds */
    size_t ld_group_scale;   /* bytes to the next row's */
};

/* t->fetch bytes behind p of w: in this tile, or beyond its end at the start of the next. */
static inline const char *mf_tile_ahead(const struct mf_tile *t, const char *p, const char *end)
{
    const char *at = p + t->fetch, *next = t->next;
    return at < end ? at : next ? next + (at - end) : p;
}

/* Group scales along K that decoding folds into bf16 values; other scales are applied to sums. */
static inline bool mf_codec_folds(const struct mf_codec *c)
{
    return c->scale == MF_SCALE_PER_1X32 || c->scale == MF_SCALE_PER_1X16;
}

/* n rows of one expert's weight, K elements k0..k_end of them, to bf16 in panels of 16: [n/16][K/2][16][2]. Rows up to a
 * multiple of 16 and an odd element at the end become zeros. k0 is a multiple of the codec's group and of 8. */
struct mf_decode {
    const struct mf_codec *codec;
    int panel;         /* of w: 1 (row), 16, 32 */
    const void *w;     /* the first row, or its panel */
    const void *scale; /* of the first row, where the codec folds */
    size_t ld_scale;   /* bytes to the next row's */
    int n;
    size_t K, k0, k_end;
    uint16_t *to;
};

struct mf_cpu_ops {
    enum mf_isa isa;
    bool fetches; /* weights are fetched as tiles say: arithmetic is fast enough for that to matter */
    void (*decode)(const struct mf_decode *d);
    /* A row of activations to bf16, its folded scales included; one more element, 0, behind an odd number. */
    void (*unpack)(const struct mf_codec *c, const void *from, const void *scale, size_t n, uint16_t *to);
    void (*gemm)(const struct mf_tile *t);
    bool int8; /* gemm() takes int8 by int8 */
    /* The same for few rows, straight from codes that gemm() does not read: each weight is decoded in registers, and
     * scales of groups along K are applied to the groups' sums. A is bf16 in the order of order(). NULL: none. */
    void (*stream)(const struct mf_tile *t);
    int stream_rows;
    /* Brings a row of A into the order in which stream() takes the K elements of those weights. */
    void (*order)(const struct mf_codec *w, uint16_t *a, size_t k);
    /* Elements of a row as gemm() wants A; NaN stays NaN. */
    void (*pack)(enum mf_format format, const void *from, size_t n, uint16_t *to);
    /* h = act(g·weight, u·weight), rounded to bf16; the activation as the shape has it. */
    void (*activate)(const struct mf_shape *shape, const float *g, const float *u, float weight, size_t n,
                     uint16_t *h);
    /* c[i] *= row · col[i]; col may be NULL. */
    void (*scale)(float *c, size_t n, float row, const float *col);
    /* sum[i] += weight · c[i] */
    void (*add)(float *sum, const float *c, size_t n, float weight);
    /* y[i] = bf16(sum over j < k of weights[j] · z[j·ldz + i]); weights may be NULL: all 1. */
    void (*combine)(const uint16_t *z, size_t ldz, int k, const float *weights, size_t n, uint16_t *y);
    void (*to_bf16)(const float *from, size_t n, uint16_t *to);
};

/* The best of the machine, or below it what MOEFARM_ISA asks for. */
const struct mf_cpu_ops *mf_cpu_ops(enum mf_isa isa);

extern const struct mf_cpu_ops mf_cpu_ops_c, mf_cpu_ops_avx2, mf_cpu_ops_avx512;
