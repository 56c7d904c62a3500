/* The product of hopper_core.inc.h with the tokens for its rows and the weights for its columns: for scales of 1x128 and many
 * tokens (but for stage 2's of few slices: hopper_short.inc.h). A lane has two tokens of each sixteen, so what a slice's sums are scaled by is two or four numbers, where the other
 * product reads two for every eight tokens. Of a column it has gate and up side by side, eight columns apart in the tile. */
#if !BY_BLOCK
#    error "MF_SWAP is for scales of 1x128"
#endif

/* Groups share a tile by its tokens, or by its weights where the tokens are only 64: of all tiles or, in stage 1, of one that has
 * no more. In stage 2 one group then has nothing to do but to go on. */
#define BY_TOKENS (!MF_TURNS && MF_BM >= 128)
#define TOKENS    (BY_TOKENS ? MF_BM / GROUPS : MF_BM)             /* of a group */
#define ROWS      (MF_TURNS || BY_TOKENS ? MF_BN : MF_BN / GROUPS) /* weight rows of a group */
#define WIDTH     MF_MIN(ROWS, 128)                                /* of them in one matrix instruction */
#define QX        (TOKENS / 64)
#define QW        (ROWS / WIDTH)
#define Q         (QX * QW)
#define N8        (WIDTH / 8)
#define TRIMS     (BY_TOKENS && !ALONE ? 1 : 0)
/* Products of a slice before they are scaled: two where registers hold them, so that one is scaled while the next is made. */
#define PARTS ((Q + 2) * N8 <= 48 && Q > 1 ? 2 : 1)

typedef float sums[N8][4];
typedef sums product[Q]; /* by weights within tokens */

/* A group's part of a tile of N times eight tokens. */
template <int N> struct cut {
    static const bool by_tokens = BY_TOKENS && N == QM;
    static const int rows = by_tokens || !BY_TOKENS ? ROWS : MF_BN / GROUPS;
    static const int width = MF_MIN(rows, 128), n8 = width / 8, qw = rows / width, q = QX * qw;
    static const bool whole = rows == MF_BN; /* has all columns of its tokens */
};
template <int N> MF_DEVICE i32 first_token(i32 share)
{
    return cut<N>::by_tokens ? share * TOKENS : 0;
}
template <int N> MF_DEVICE i32 first_row(i32 share)
{
    return cut<N>::by_tokens ? 0 : share * cut<N>::rows;
}

/* All tokens of the group are padding. */
MF_DEVICE bool is_idle(const mf_hip_tile_args &a, const place &p, i32 share)
{
    return BY_TOKENS && !TRIMS && share > 0 && is_few(a, p);
}

template <int W8> MF_DEVICE void hold(sums &d)
{
    MF_UNROLL
    for (int i = 0; i < W8 * 4; i++)
        mf_matrix_hold(d[i / 4][i % 4]);
}
/* 64 tokens of a slice by some of its weight rows. */
template <int W8> MF_DEVICE void multiply(const u8 *slice, i32 token, i32 row, sums &d)
{
    const u64 x = mf_matrix_of(slice + (MF_BN + token) * SLICE), w = mf_matrix_of(slice + row * SLICE);
    MF_UNROLL
    for (int s = 0; s < SLICE / 32; s++)
        mf_matrix_multiply<W8>::fp8(d, x + 2 * s, w + 2 * s, s > 0);
}

/* Of the weight rows of an instruction: those of gate, or all, and those of up. */
struct weight_scales {
    float low[QW], high[QW];
};
template <class Cut>
MF_DEVICE void load_scales(const mf_hip_tile_args &a, const place &p, i32 row, i32 slice, weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < Cut::qw; q++) {
        const i32 c = p.col + (row + q * Cut::width) / MF_HALVES;
        const i32 block = MF_MIN(c, MF_N - 1) / 128;
        const float *s = a.w_scale + ((i64)p.expert * MF_CEIL(ROWS_OF_W, 128) + block) * BLOCKS_D +
                         MF_MIN(slice, SLICES - 1);
        ret.low[q] = s[0];
        ret.high[q] = MF_HALVES == 2 ? s[(i64)(MF_N / 128) * BLOCKS_D] : ret.low[q];
    }
}
/* A slice's, which one lane has loaded. */
template <class Cut> MF_DEVICE void take_scales(const weight_scales &of_lane, i32 slice, weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < Cut::qw; q++) {
        ret.low[q] = mf_of_lane(of_lane.low[q], slice);
        ret.high[q] = mf_of_lane(of_lane.high[q], slice);
    }
}
/* Of the lane's tokens. */
MF_DEVICE void take_tokens_scales(const float *scales, float (&first)[QX], float (&second)[QX])
{
    MF_UNROLL
    for (int q = 0; q < QX; q++) {
        first[q] = scales[q * 64];
        second[q] = scales[q * 64 + 8];
    }
}
/* first, second: what the lane's tokens are scaled by. */
template <int W8>
MF_DEVICE void add_scaled(float first, float second, float low, float high, const sums &part, sums &d)
{
    const float f[2] = {first * low, first * high}, s[2] = {second * low, second * high};
    MF_UNROLL
    for (int j = 0; j < W8; j++) {
        const int up = MF_HALVES == 2 ? j % 2 : 0;
        d[j][0] += part[j][0] * f[up];
        d[j][1] += part[j][1] * f[up];
        d[j][2] += part[j][2] * s[up];
        d[j][3] += part[j][3] * s[up];
    }
}

template <int N>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const place &p, i32 share, product &d)
{
    typedef cut<N> cut;
    const i32 token = first_token<N>(share), row = first_row<N>(share);
    const i32 lane = threadIdx.x % MF_WAVE, mine = token + threadIdx.x % GROUP / MF_WAVE * 16 + lane / 4;
    weight_scales of_lane, now; /* the lane's slice of 32, which all lanes get from it; this slice's */
    sums part[PARTS];
    if (is_idle(a, p, share)) {
        pass_slices(r);
        return;
    }
    MF_UNROLL
    for (int i = 0; i < cut::q * cut::n8 * 4; i++)
        d[i / (cut::n8 * 4)][i / 4 % cut::n8][i % 4] = 0;
    load_scales<cut>(a, p, row, lane, of_lane);
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++) {
        const u8 *from = slice_of(r);
        const float *scales = (const float *)(from + (MF_BN + MF_BM) * SLICE) + mine;
        float first[QX], second[QX];
        if (scales_have_ended(slice))
            load_scales<cut>(a, p, row, slice + lane, of_lane);
        take_scales<cut>(of_lane, slice, now); /* before the wait, behind which the compiler puts them off */
        wait_full(r);
        if (GATHERS) {
            mf_async_fence();
            take_tokens_scales(scales, first, second);
        }
        MF_UNROLL
        for (int q = 0; q < cut::q + PARTS - 1; q++) {
            const int made = q - (PARTS - 1); /* behind the one that begins */
            if (q < cut::q) {
                hold<cut::n8>(part[q % PARTS]);
                mf_matrix_begin();
                multiply<cut::n8>(from, token + q / cut::qw * 64, row + q % cut::qw * cut::width,
                                  part[q % PARTS]);
                mf_matrix_commit();
            }
            if (!GATHERS && q == 0) /* while that one is made; stage 1 has no registers for it */
                take_tokens_scales(scales, first, second);
            if (made < 0)
                continue;
            if (q < cut::q)
                mf_matrix_wait<PARTS - 1>();
            else
                mf_matrix_wait<0>();
            hold<cut::n8>(part[made % PARTS]);
            if (made == cut::q - 1)
                leave_slice(r, 0);
            add_scaled<cut::n8>(first[made / cut::qw], second[made / cut::qw], now.low[made % cut::qw],
                                now.high[made % cut::qw], part[made % PARTS], d[made]);
        }
        r.at++;
    }
}

/* Two columns of one token as bf16, of eight from `col` of the tile on those of the lane; `up` is not read without up. */
MF_DEVICE u32 leave_two(const mf_hip_tile_args &a, const place &p, i32 col, float weight, const float *gate,
                        const float *up)
{
    float v[2];
    MF_UNROLL
    for (int c = 0; c < 2; c++) {
        const i32 column = p.col + col + (i32)(threadIdx.x % 4) * 2 + c;
        const float g = finished(gate[c], weight, bias_of(a, p.expert, column, false));
#if MF_HALVES == 2
        v[c] = mf_activate(g, finished(up[c], weight, bias_of(a, p.expert, column, true)));
#else
        (void)up;
        v[c] = leaving(g);
#endif
    }
    return mf_bf16_pair(v[0], v[1]);
}

#ifdef MF_QUANT
/* Does a group quantise its tokens itself, in registers? It has all columns of them then. */
MF_DEVICE bool leaves_codes(const mf_hip_tile_args &a, const place &p)
{
    return cut<QM>::whole && !(TRIMS > 0 && is_few(a, p));
}
/* Rows of a tile that are left to be quantised by all: those of few tokens, which groups share by weights. */
#    define LEFT_ROWS (cut<QM>::whole ? QM_HALF * 8 : MF_BM)
static_assert(LEFT_ROWS * OUT_STRIDE * 2 <= OUT_BYTES &&
                  (!cut<QM>::whole || MF_BM * CODES_STRIDE <= OUT_BYTES),
              "out holds what tiles leave");
/* Of two of the lane's tokens, eight apart, the 128 columns from g of the tile on, which four lanes have: two of every eight. of: the sums of
 * their 64 tokens. Step by step for both, so that one's is done while the other's is waited for. */
template <class Cut>
MF_DEVICE void leave_groups(const mf_hip_tile_args &a, const place &p, i32 token, int g, const sums *of,
                            u8 *codes)
{
    const int eights = Cut::n8 / MF_HALVES; /* of columns, in a product */
    const i64 at = (i64)p.block * MF_BM + token;
    u32 two[2][16], largest[2] = {0, 0};
    mf_divisor by[2];
    MF_UNROLL
    for (int t = 0; t < 2; t++) {
        const float weight = MF_WEIGHT ? a.sorted_weights[at + t * 8] : 1.0f;
        MF_UNROLL
        for (int j = 0; j < 16; j++) {
            const int eight = g / 8 + j, gate = eight % eights * MF_HALVES;
            const sums &sum = of[eight / eights];
            two[t][j] =
                leave_two(a, p, eight * 8, weight, sum[gate] + t * 2, sum[gate + MF_HALVES - 1] + t * 2);
            largest[t] = mf_larger_2(largest[t], two[t][j]);
        }
    }
    MF_UNROLL
    for (int t = 0; t < 2; t++)
        by[t] = mf_divisor_of(mf_larger_half(mf_larger_of_lanes<4>(largest[t])));
    MF_UNROLL
    for (int t = 0; t < 2; t++) {
        u16 *to = (u16 *)(codes + (token + t * 8) * CODES_STRIDE + g) + threadIdx.x % 4;
        MF_UNROLL
        for (int j = 0; j < 16; j++)
            to[j * 4] = (u16)mf_quantise_2(two[t][j], by[t]);
        if (threadIdx.x % 4 == 0 && p.col + g < MF_N)
            a.out_scale[(at + t * 8) * MF_CEIL(MF_N, 128) + (p.col + g) / 128] = by[t].by;
    }
}
/* The group's sums as e4m3 into codes[token][column], and what scales them to memory. */
template <int N>
MF_DEVICE void leave_codes(const mf_hip_tile_args &a, const place &p, i32 share, const product &d, u8 *codes)
{
    const i32 first = first_token<N>(share) + threadIdx.x % GROUP / MF_WAVE * 16 + threadIdx.x % MF_WAVE / 4;
    MF_UNROLL
    for (int q = 0; q < QX; q++) {
        MF_UNROLL
        for (int g = 0; g < COLS; g += 128) {
            leave_groups<cut<N>>(a, p, first + q * 64, g, d + q * cut<N>::qw, codes);
        }
    }
}
#endif

/* The group's sums as bf16 into out[token][column]; a wave has sixteen tokens of each 64. */
template <int N>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const place &p, i32 share, product &d, u16 *out)
{
    typedef cut<N> cut;
    const i32 lane = threadIdx.x % MF_WAVE;
    if (is_idle(a, p, share))
        return;
#ifdef MF_QUANT
    if (cut::whole) {
        leave_codes<N>(a, p, share, d, (u8 *)out);
        return;
    }
#endif
    MF_UNROLL
    for (int q = 0; q < cut::q; q++) {
        const i32 token = first_token<N>(share) + q / cut::qw * 64 + threadIdx.x % GROUP / MF_WAVE * 16;
        const i32 col = (first_row<N>(share) + q % cut::qw * cut::width) / MF_HALVES;
        const float *weights = a.sorted_weights + (i64)p.block * MF_BM + token + lane / 4;
        const float w0 = MF_WEIGHT ? weights[0] : 1.0f, w1 = MF_WEIGHT ? weights[8] : 1.0f;
        u16 *to = out + (token + lane % 16) * OUT_STRIDE + col + lane / 16 * 8;
        /* twice eight tokens, and eights of columns: four matrices of eight by eight */
        MF_UNROLL
        for (int j = 0; j < cut::n8 / MF_HALVES; j += 2) {
            u32 v[4];
            MF_UNROLL
            for (int i = 0; i < 2; i++) {
                const float *gate = d[q][(j + i) * MF_HALVES],
                            *up = d[q][(j + i) * MF_HALVES + MF_HALVES - 1];
                v[2 * i] = leave_two(a, p, col + (j + i) * 8, w0, gate, up);
                v[2 * i + 1] = leave_two(a, p, col + (j + i) * 8, w1, gate + 2, up + 2);
            }
            mf_store_4(to + j * 8, v);
        }
    }
}
