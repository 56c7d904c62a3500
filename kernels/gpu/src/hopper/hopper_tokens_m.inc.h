/* Mainloop product of hopper_core.inc.h with tokens as the M dimension and weights as N, for 1x128 block
 * scales and many tokens. hopper_short_k.inc.h replaces it in stage 2 with few K tiles. Of each sixteen
 * tokens a lane has two, so it scales a K tile's sums by two factors, or by four with gate and up. With
 * weights as M, a lane would need two factors for every eight tokens. A lane has both gate and up of a
 * column; they are eight tile columns apart. */
#if !BY_BLOCK
#    error "MF_SWAP is for scales of 1x128"
#endif

/* How consumer warpgroups split a tile: by tokens (M), or by weights (N) if a tile has only 64 tokens. In
 * stage 1 a tile with at most 64 valid tokens is also split by weights. In stage 2 one warpgroup skips such a
 * tile and continues with the next one. */
#define BY_TOKENS (!MF_PINGPONG && MF_BM >= 128)
#define TOKENS    (BY_TOKENS ? MF_BM / CONSUMERS : MF_BM)                /* tokens of a warpgroup */
#define ROWS      (MF_PINGPONG || BY_TOKENS ? MF_BN : MF_BN / CONSUMERS) /* weight rows of a warpgroup */
#define WIDTH     MF_MIN(ROWS, 128)                                      /* N of one WGMMA */
#define QX        (TOKENS / 64)
#define QW        (ROWS / WIDTH)
#define Q         (QX * QW)
#define N8        (WIDTH / 8)
#define TRIMS     (BY_TOKENS && !OWN_EPILOGUE ? 1 : 0)
/* Number of unscaled products of a K tile in registers. It is two if there are enough registers, so that one
 * product is scaled while the next one is computed. */
#define PARTS ((Q + 2) * N8 <= 48 && Q > 1 ? 2 : 1)

typedef float sums[N8][4];
typedef sums product[Q]; /* index: token block * QW + weight block */

/* Shape of a warpgroup's part of a tile of N * 8 tokens. */
template <int N> struct warpgroup_shape {
    static const bool by_tokens = BY_TOKENS && N == QM;
    static const int rows = by_tokens || !BY_TOKENS ? ROWS : MF_BN / CONSUMERS;
    static const int width = MF_MIN(rows, 128), n8 = width / 8, qw = rows / width, q = QX * qw;
    static const bool whole = rows == MF_BN; /* true: the warpgroup has all columns of its tokens */
};
template <int N> MF_DEVICE i32 first_token(i32 part_index)
{
    return warpgroup_shape<N>::by_tokens ? part_index * TOKENS : 0;
}
template <int N> MF_DEVICE i32 first_row(i32 part_index)
{
    return warpgroup_shape<N>::by_tokens ? 0 : part_index * warpgroup_shape<N>::rows;
}

/* Returns true if all tokens of the warpgroup are padding. */
MF_DEVICE bool is_idle(const mf_hip_tile_args &a, const tile_info &p, i32 part_index)
{
    return BY_TOKENS && !TRIMS && part_index > 0 && is_few(a, p);
}

template <int W8> MF_DEVICE void fence_sums(sums &d)
{
    MF_UNROLL
    for (int i = 0; i < W8 * 4; i++)
        mf_wgmma_fence_operand(d[i / 4][i % 4]);
}
/* Multiplies 64 tokens of a K tile by W8 * 8 of the K tile's weight rows. */
template <int W8> MF_DEVICE void multiply(const u8 *k_tile, i32 token, i32 row, sums &d)
{
    const u64 x = mf_wgmma_descriptor(k_tile + (MF_BN + token) * K_TILE_BYTES),
              w = mf_wgmma_descriptor(k_tile + row * K_TILE_BYTES);
    MF_UNROLL
    for (int s = 0; s < K_TILE_BYTES / 32; s++)
        mf_wgmma<W8>::fp8(d, x + 2 * s, w + 2 * s, s > 0);
}

/* Scales of the weight rows of one WGMMA: `low` is for gate (or for all rows), `high` for up. */
struct weight_scales {
    float low[QW], high[QW];
};
template <class Shape>
MF_DEVICE void load_scales(const mf_hip_tile_args &a, const tile_info &p, i32 row, i32 k_tile,
                           weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < Shape::qw; q++) {
        const i32 c = p.col + (row + q * Shape::width) / MF_HALVES;
        const i32 block = MF_MIN(c, MF_N - 1) / 128;
        const float *s = a.w_scale + ((i64)p.expert * MF_CEIL(ROWS_OF_W, 128) + block) * BLOCKS_D +
                         MF_MIN(k_tile, K_TILES - 1);
        ret.low[q] = s[0];
        ret.high[q] = MF_HALVES == 2 ? s[(i64)(MF_N / 128) * BLOCKS_D] : ret.low[q];
    }
}
/* Broadcasts the scales of a K tile from the lane that loaded them. */
template <class Shape>
MF_DEVICE void broadcast_scales(const weight_scales &of_lane, i32 k_tile, weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < Shape::qw; q++) {
        ret.low[q] = mf_shuffle(of_lane.low[q], k_tile);
        ret.high[q] = mf_shuffle(of_lane.high[q], k_tile);
    }
}
/* Loads the scales of the lane's tokens. */
MF_DEVICE void load_token_scales(const float *scales, float (&first)[QX], float (&second)[QX])
{
    MF_UNROLL
    for (int q = 0; q < QX; q++) {
        first[q] = scales[q * 64];
        second[q] = scales[q * 64 + 8];
    }
}
/* Adds a product times its scales to the sums. `first` and `second` are the scales of the lane's two tokens.
 */
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
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const tile_info &p, i32 part_index,
                             product &d)
{
    typedef warpgroup_shape<N> warpgroup_shape;
    const i32 token = first_token<N>(part_index), row = first_row<N>(part_index);
    const i32 lane = threadIdx.x % MF_WAVE, mine = token + threadIdx.x % WARPGROUP / MF_WAVE * 16 + lane / 4;
    /* of_lane: the scales that this lane loads, which are those of one K tile in 32; now: scales of the
     * current K tile */
    weight_scales of_lane, now;
    sums part[PARTS];
    if (is_idle(a, p, part_index)) {
        skip_k_tiles(r);
        return;
    }
    MF_UNROLL
    for (int i = 0; i < warpgroup_shape::q * warpgroup_shape::n8 * 4; i++)
        d[i / (warpgroup_shape::n8 * 4)][i / 4 % warpgroup_shape::n8][i % 4] = 0;
    load_scales<warpgroup_shape>(a, p, row, lane, of_lane);
    MF_NO_UNROLL
    for (i32 k_tile = 0; k_tile < K_TILES; k_tile++) {
        const u8 *from = stage_of(r);
        const float *scales = (const float *)(from + (MF_BN + MF_BM) * K_TILE_BYTES) + mine;
        float first[QX], second[QX];
        if (scales_exhausted(k_tile))
            load_scales<warpgroup_shape>(a, p, row, k_tile + lane, of_lane);
        /* the broadcast comes before the wait, because the compiler would otherwise place it after the loads
         * that follow the wait */
        broadcast_scales<warpgroup_shape>(of_lane, k_tile, now);
        wait_full(r);
        if (GATHERS) {
            mf_async_fence();
            load_token_scales(scales, first, second);
        }
        MF_UNROLL
        for (int q = 0; q < warpgroup_shape::q + PARTS - 1; q++) {
            /* index of the finished product, PARTS - 1 behind the product that is being started */
            const int made = q - (PARTS - 1);
            if (q < warpgroup_shape::q) {
                fence_sums<warpgroup_shape::n8>(part[q % PARTS]);
                mf_wgmma_fence();
                multiply<warpgroup_shape::n8>(from, token + q / warpgroup_shape::qw * 64,
                                              row + q % warpgroup_shape::qw * warpgroup_shape::width,
                                              part[q % PARTS]);
                mf_wgmma_commit();
            }
            /* this load overlaps the WGMMA; stage 1 has too few registers to load here */
            if (!GATHERS && q == 0)
                load_token_scales(scales, first, second);
            if (made < 0)
                continue;
            if (q < warpgroup_shape::q)
                mf_wgmma_wait<PARTS - 1>();
            else
                mf_wgmma_wait<0>();
            fence_sums<warpgroup_shape::n8>(part[made % PARTS]);
            if (made == warpgroup_shape::q - 1)
                release_stage(r, 0);
            add_scaled<warpgroup_shape::n8>(
                first[made / warpgroup_shape::qw], second[made / warpgroup_shape::qw],
                now.low[made % warpgroup_shape::qw], now.high[made % warpgroup_shape::qw], part[made % PARTS],
                d[made]);
        }
        r.at++;
    }
}

/* Returns two output columns of one token as bf16: the lane's two of the eight columns that begin at column
 * `col` of the tile. `up` is read only if the layer has up. */
MF_DEVICE u32 output_pair(const mf_hip_tile_args &a, const tile_info &p, i32 col, float weight,
                          const float *gate, const float *up)
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
        v[c] = activated(g);
#endif
    }
    return mf_bf16_pair(v[0], v[1]);
}

#ifdef MF_QUANT
/* Returns true if a warpgroup quantises its tokens in registers, because it has all columns of these tokens.
 */
MF_DEVICE bool quantises_in_registers(const mf_hip_tile_args &a, const tile_info &p)
{
    return warpgroup_shape<QM>::whole && !(TRIMS > 0 && is_few(a, p));
}
/* Number of rows of a tile that all threads together quantise from `out`. If a warpgroup has all columns of
 * its tokens, only tiles with few tokens are quantised from `out`, because the warpgroups split these tiles
 * by weights. */
#    define BF16_ROWS (warpgroup_shape<QM>::whole ? QM_HALF * 8 : MF_BM)
static_assert(BF16_ROWS * OUT_STRIDE * 2 <= OUT_BYTES &&
                  (!warpgroup_shape<QM>::whole || MF_BM * CODES_STRIDE <= OUT_BYTES),
              "out holds what tiles leave");
/* Quantises the 128 columns that begin at tile column `g`, for two of the lane's tokens that are eight apart.
 * Four lanes share these columns; each lane has two of every eight columns. `of` has the sums of the 64
 * tokens. Each step processes both tokens, so that their latencies overlap. */
template <class Shape>
MF_DEVICE void quantise_sum_groups(const mf_hip_tile_args &a, const tile_info &p, i32 token, int g,
                                   const sums *of, u8 *codes)
{
    const int eights = Shape::n8 / MF_HALVES; /* number of groups of 8 output columns per product */
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
                output_pair(a, p, eight * 8, weight, sum[gate] + t * 2, sum[gate + MF_HALVES - 1] + t * 2);
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
/* Stores the warpgroup's sums as e4m3 into codes[token][column], and their scales to global memory. */
template <int N>
MF_DEVICE void quantise_sums(const mf_hip_tile_args &a, const tile_info &p, i32 part_index, const product &d,
                             u8 *codes)
{
    const i32 first =
        first_token<N>(part_index) + threadIdx.x % WARPGROUP / MF_WAVE * 16 + threadIdx.x % MF_WAVE / 4;
    MF_UNROLL
    for (int q = 0; q < QX; q++) {
        MF_UNROLL
        for (int g = 0; g < COLS; g += 128) {
            quantise_sum_groups<warpgroup_shape<N>>(a, p, first + q * 64, g, d + q * warpgroup_shape<N>::qw,
                                                    codes);
        }
    }
}
#endif

/* Stores the warpgroup's sums as bf16 into out[token][column]. Each warp holds the sums of 16 of every 64
 * tokens. */
template <int N>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const tile_info &p, i32 part_index, product &d, u16 *out)
{
    typedef warpgroup_shape<N> warpgroup_shape;
    const i32 lane = threadIdx.x % MF_WAVE;
    if (is_idle(a, p, part_index))
        return;
#ifdef MF_QUANT
    if (warpgroup_shape::whole) {
        quantise_sums<N>(a, p, part_index, d, (u8 *)out);
        return;
    }
#endif
    MF_UNROLL
    for (int q = 0; q < warpgroup_shape::q; q++) {
        const i32 token = first_token<N>(part_index) + q / warpgroup_shape::qw * 64 +
                          threadIdx.x % WARPGROUP / MF_WAVE * 16;
        const i32 col =
            (first_row<N>(part_index) + q % warpgroup_shape::qw * warpgroup_shape::width) / MF_HALVES;
        const float *weights = a.sorted_weights + (i64)p.block * MF_BM + token + lane / 4;
        const float w0 = MF_WEIGHT ? weights[0] : 1.0f, w1 = MF_WEIGHT ? weights[8] : 1.0f;
        u16 *to = out + (token + lane % 16) * OUT_STRIDE + col + lane / 16 * 8;
        /* four 8x8 matrices: 16 tokens by 16 columns */
        MF_UNROLL
        for (int j = 0; j < warpgroup_shape::n8 / MF_HALVES; j += 2) {
            u32 v[4];
            MF_UNROLL
            for (int i = 0; i < 2; i++) {
                const float *gate = d[q][(j + i) * MF_HALVES],
                            *up = d[q][(j + i) * MF_HALVES + MF_HALVES - 1];
                v[2 * i] = output_pair(a, p, col + (j + i) * 8, w0, gate, up);
                v[2 * i + 1] = output_pair(a, p, col + (j + i) * 8, w1, gate + 2, up + 2);
            }
            mf_stmatrix_4(to + j * 8, v);
        }
    }
}
