/* Compares, rounds and gathers candidates' rows in device memory. measure/verify/verify_row.h is the host
 * version of the comparison. A team of lanes processes a row, eight bf16 per lane at a time. */
#include "dialect.h"
#include "args.h"

#define THREADS 256
#define TEAM    32
#define TEAMS   (THREADS / TEAM)
#define NOWHERE 0xffffffffu

/* Statistics of the elements of a row that one lane has processed. */
struct row_stats {
    float difference, norm, size;
    u32 unwritten, unwritten_at, bad, bad_at, mismatches;
};

/* Compares v with the expected value w. `bits` is v as bf16, `col` its column. */
MF_DEVICE void check_element(row_stats &s, u32 bits, float v, float w, i32 col, const mf_hip_rows_args &a)
{
    const float d = mf_plus(v, -w);
    if (bits == a.poison) {
        s.unwritten++;
        s.unwritten_at = MF_MIN(s.unwritten_at, (u32)col);
    }
    if ((bits & 0x7f80) == 0x7f80) {
        s.bad++;
        s.bad_at = MF_MIN(s.bad_at, (u32)col);
    }
    s.mismatches += fabsf(d) > mf_plus(a.tolerance, mf_times(a.tolerance, fabsf(w)));
    s.difference = mf_plus(s.difference, mf_times(d, d));
    s.norm = mf_plus(s.norm, mf_times(w, w));
    s.size = mf_plus(s.size, mf_times(v, v));
}

/* Compares an element with the same element of another run. */
MF_DEVICE void compare(row_stats &s, u32 bits, u32 other)
{
    const float w = mf_bf16((u16)bits), d = mf_plus(mf_bf16((u16)other), -w);
    s.mismatches += bits != other;
    s.difference = mf_plus(s.difference, mf_times(d, d));
    s.norm = mf_plus(s.norm, mf_times(w, w));
}

MF_DEVICE u32 half_of(const mf_16b &v, int i)
{
    const u32 two = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
    return i % 2 ? two >> 16 : two & 0xffff;
}
MF_DEVICE float float_of(const mf_16b &v, int i)
{
    return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
}

/* Adds up the statistics of a team; lane 0 writes the totals. All threads of the block must call this
 * function. */
MF_DEVICE void write_row(const row_stats &s, bool is_there, mf_hip_row *to)
{
    __shared__ double sums[3][THREADS];
    __shared__ u32 counts[5][THREADS];
    const i32 t = threadIdx.x, lane = t % TEAM;

    sums[0][t] = s.difference;
    sums[1][t] = s.norm;
    sums[2][t] = s.size;
    counts[0][t] = s.unwritten;
    counts[1][t] = s.bad;
    counts[2][t] = s.mismatches;
    counts[3][t] = s.unwritten_at;
    counts[4][t] = s.bad_at;
    for (i32 half = TEAM / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            for (i32 i = 0; i < 3; i++) {
                sums[i][t] = mf_plus(sums[i][t], sums[i][t + half]);
                counts[i][t] += counts[i][t + half];
            }
            for (i32 i = 3; i < 5; i++)
                counts[i][t] = MF_MIN(counts[i][t], counts[i][t + half]);
        }
    }
    if (lane == 0 && is_there) {
        to->difference = sums[0][t];
        to->norm = sums[1][t];
        to->size = sums[2][t];
        to->unwritten = counts[0][t];
        to->bad = counts[1][t];
        to->mismatches = counts[2][t];
        to->unwritten_at = counts[3][t] == NOWHERE ? 0 : counts[3][t];
        to->bad_at = counts[4][t] == NOWHERE ? 0 : counts[4][t];
        to->unused = 0;
    }
    __syncthreads();
}

/* Compares each row with the corresponding row of the reference times the row's factor, or with zeros if
 * there is no reference. */
extern "C" __global__ void __launch_bounds__(THREADS) mf_compare_reference(const mf_hip_rows_args a)
{
    for (i64 first = (i64)blockIdx.x * TEAMS; first < a.rows; first += (i64)gridDim.x * TEAMS) {
        const i64 row = first + threadIdx.x / TEAM;
        const i64 source = row >= a.rows ? -1 : a.source ? a.source[row] : row;
        row_stats s = {0.0f, 0.0f, 0.0f, 0, NOWHERE, 0, NOWHERE, 0};
        if (source >= 0) {
            const u16 *const values = (const u16 *)a.values + row * a.cols;
            const float *const should = a.other ? (const float *)a.other + source * a.cols : nullptr;
            const float factor = a.factors ? a.factors[source] : 1.0f;
            for (i32 col = threadIdx.x % TEAM * 8; col < a.cols; col += TEAM * 8) {
                const mf_16b v = *(const mf_16b *)(values + col);
                mf_16b w[2] = {};
                if (should) {
                    w[0] = *(const mf_16b *)(should + col);
                    w[1] = *(const mf_16b *)(should + col + 4);
                }
                MF_UNROLL
                for (int i = 0; i < 8; i++) {
                    const u32 bits = half_of(v, i);
                    check_element(s, bits, mf_bf16((u16)bits), mf_times(float_of(w[i / 4], i % 4), factor),
                                  col + i, a);
                }
            }
        }
        write_row(s, source >= 0, a.out + row);
    }
}

/* Compares the rows of two runs. `mismatches` receives the number of elements with different bits.
 * `difference` is the norm of the other run minus this run, `norm` the norm of this run. */
extern "C" __global__ void __launch_bounds__(THREADS) mf_compare_runs(const mf_hip_rows_args a)
{
    for (i64 first = (i64)blockIdx.x * TEAMS; first < a.rows; first += (i64)gridDim.x * TEAMS) {
        const i64 row = first + threadIdx.x / TEAM;
        const bool is_there = row < a.rows && (!a.source || a.source[row] >= 0);
        row_stats s = {0.0f, 0.0f, 0.0f, 0, NOWHERE, 0, NOWHERE, 0};
        if (is_there) {
            const u16 *const values = (const u16 *)a.values + row * a.cols;
            const u16 *const others = (const u16 *)a.other + row * a.cols;
            for (i32 col = threadIdx.x % TEAM * 8; col < a.cols; col += TEAM * 8) {
                const mf_16b v = *(const mf_16b *)(values + col), w = *(const mf_16b *)(others + col);
                MF_UNROLL
                for (int i = 0; i < 8; i++)
                    compare(s, half_of(v, i), half_of(w, i));
            }
        }
        write_row(s, is_there, a.out + row);
    }
}

/* Multiplies float rows by their factors and rounds each product to float, then to bf16, the format of a
 * candidate's input. */
extern "C" __global__ void __launch_bounds__(THREADS) mf_round(const mf_hip_round_args a)
{
    for (i64 row = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM; row < a.rows;
         row += (i64)gridDim.x * TEAMS) {
        const float factor = a.factors ? a.factors[row] : 1.0f;
        for (i32 col = threadIdx.x % TEAM * 8; col < a.cols; col += TEAM * 8) {
            const mf_16b *const from = (const mf_16b *)(a.from + row * a.cols + col);
            u32 two[4];
            MF_UNROLL
            for (int i = 0; i < 4; i++)
                two[i] = mf_bf16_pair(mf_times(float_of(from[i / 2], i % 2 * 2), factor),
                                      mf_times(float_of(from[i / 2], i % 2 * 2 + 1), factor));
            *(mf_16b *)((u16 *)a.to + row * a.cols + col) = mf_16b{two[0], two[1], two[2], two[3]};
        }
    }
}

/* Copies a row in units of T, the widest type that divides the row. If `source` is negative, writes the
 * poison pattern instead. */
template <class T> MF_DEVICE void gather_row(const mf_hip_gather_args &a, i64 row, i64 source, T poison)
{
    const i64 n = a.row_bytes / (i64)sizeof(T);
    const T *const from = (const T *)a.from + source * n;
    T *const to = (T *)a.to + row * n;
    for (i64 i = threadIdx.x % TEAM; i < n; i += TEAM)
        to[i] = source < 0 ? poison : from[i];
}

/* Gathers a candidate's input into sorted order. Rows with an out-of-range source are filled with the poison
 * pattern, because candidates may have overwritten the ids. */
extern "C" __global__ void __launch_bounds__(THREADS) mf_gather(const mf_hip_gather_args a)
{
    for (i64 row = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM; row < a.rows;
         row += (i64)gridDim.x * TEAMS) {
        i64 source = row;
        if (a.ids) {
            const i32 id = a.ids[row];
            const i64 token = mf_id_token(id);
            source = row >= a.num_valid[0] ? -1 : a.topk > 1 ? token * a.topk + mf_id_slot(id) : token;
        }
        if (source >= a.n_from)
            source = -1;
        if (a.row_bytes % 16 == 0)
            gather_row(a, row, source, mf_16b{a.poison, a.poison, a.poison, a.poison});
        else if (a.row_bytes % 4 == 0)
            gather_row(a, row, source, a.poison);
        else
            gather_row(a, row, source, (u8)(a.poison >> 8 * (threadIdx.x % 4)));
    }
}
