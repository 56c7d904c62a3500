/* GPU version of the reference's large matrix products (kernels/reference/reference.c), bit for bit. Each
 * float dot product is sixteen partial sums: partial sum i adds products i, i + 16, …. The partial sums are
 * then added in four rounds: each round adds the upper half of them to the lower half. Products and sums are
 * rounded separately.
 *
 * Sixteen lanes hold the sixteen partial sums of 8 x 8 dot products. A block multiplies 32 rows of a by 32
 * rows of w, 64 elements along K at a time. Zeros beyond the end of K change no sum, because no sum is -0. */
#include "dialect.h"
#include "args.h"

#define THREADS 256
#define PARTS   16
#define TILE    MF_DOTS_TILE
#define STEP    64
#define STRIDE  80 /* row stride in shared memory, which puts adjacent rows into different banks */
#define EACH    8  /* rows of a, and as many rows of w, per team of sixteen lanes */
#define TEAMS   (TILE / EACH)
#define LOADS   (TILE * STEP / 4 / THREADS)

/* A tile of the product: n_slots slots times n_cols rows of w. */
struct tile {
    const float *w;
    const i32 *slots;
    i32 n_slots, n_cols; /* at most TILE */
    i32 expert, col;
};

MF_DEVICE tile tile_at(const mf_hip_dots_args &a, i64 at)
{
    const i32 across = MF_CEIL(a.n, TILE);
    const mf_hip_dots_tile t = a.tiles[at / across];
    tile r;
    r.col = (i32)(at % across) * TILE;
    r.w = a.w + ((i64)t.matrix * a.n + r.col) * a.k;
    r.slots = a.slots + t.first;
    r.n_slots = t.n;
    r.n_cols = MF_MIN(TILE, a.n - r.col);
    r.expert = t.expert;
    return r;
}

/* Loads four values per row, starting at element k. Thread t loads from row t / 16 and from every sixteenth
 * row after it. */
MF_DEVICE void load_rows(const float *const (&rows)[LOADS], i32 k, i32 K, mf_16b (&v)[LOADS])
{
    MF_UNROLL
    for (int i = 0; i < LOADS; i++) {
        v[i] = mf_16b{0, 0, 0, 0};
        if (rows[i] && k < K)
            v[i] = *(const mf_16b *)(rows[i] + k);
    }
}
MF_DEVICE void store_rows(float *lds, const mf_16b (&v)[LOADS])
{
    MF_UNROLL
    for (int i = 0; i < LOADS; i++)
        *(mf_16b *)(lds + (threadIdx.x / 16 + i * (THREADS / 16)) * STRIDE + threadIdx.x % 16 * 4) = v[i];
}

/* Multiplies a team's rows: rows i·TEAMS + row of `a` by rows i·TEAMS + col of `w`. */
MF_DEVICE void multiply(float (&sum)[EACH][EACH], const float *a, const float *w, i32 row, i32 col, i32 part)
{
    MF_UNROLL
    for (int k = 0; k < STEP; k += PARTS) {
        float x[EACH], y[EACH];
        MF_UNROLL
        for (int i = 0; i < EACH; i++) {
            x[i] = a[(i * TEAMS + row) * STRIDE + k + part];
            y[i] = w[(i * TEAMS + col) * STRIDE + k + part];
        }
        MF_UNROLL
        for (int i = 0; i < EACH; i++) {
            MF_UNROLL
            for (int j = 0; j < EACH; j++)
                sum[i][j] = mf_plus(sum[i][j], mf_times(x[i], y[j]));
        }
    }
}

/* Adds N sums across lanes that are D apart. Afterwards each lane holds one half of the sums. */
template <int N, int D> MF_DEVICE void fold(float (&v)[EACH * EACH], i32 part)
{
    const bool high = part & D;
    MF_UNROLL
    for (int i = 0; i < N / 2; i++) {
        const float lower = v[i], upper = v[i + N / 2];
        v[i] = mf_plus(high ? upper : lower, mf_shuffle_xor(high ? lower : upper, D));
    }
}

/* Folds the 64 sums, in row order, and stores them. After the folds, lane `part` holds sums 4·part to 4·part
 * + 3. */
MF_DEVICE void store_sums(const mf_hip_dots_args &a, const tile &t, float (&sum)[EACH][EACH], i32 row,
                          i32 col, i32 part)
{
    float v[EACH * EACH];
    MF_UNROLL
    for (int i = 0; i < EACH * EACH; i++)
        v[i] = sum[i / EACH][i % EACH];
    fold<64, 8>(v, part);
    fold<32, 4>(v, part);
    fold<16, 2>(v, part);
    fold<8, 1>(v, part);
    const i32 r = part / 2 * TEAMS + row;
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const i32 c = (part % 2 * 4 + i) * TEAMS + col;
        if (r < t.n_slots && c < t.n_cols) {
            const float bias = a.bias ? a.bias[(i64)t.expert * a.n + t.col + c] : 0.0f;
            a.out[(i64)t.slots[r] * a.n + t.col + c] = mf_plus(v[i], bias);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) mf_dots(const mf_hip_dots_args a)
{
    __shared__ __align__(16) float lds_a[TILE * STRIDE];
    __shared__ __align__(16) float lds_w[TILE * STRIDE];
    const i32 part = threadIdx.x % PARTS, team = threadIdx.x / PARTS, row = team / TEAMS, col = team % TEAMS;
    const i64 n = (i64)a.n_tiles * MF_CEIL(a.n, TILE);

    for (i64 at = blockIdx.x; at < n; at += gridDim.x) {
        const tile t = tile_at(a, at);
        const float *rows[LOADS], *cols[LOADS];
        mf_16b next_a[LOADS], next_w[LOADS];
        float sum[EACH][EACH] = {};
        MF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            const i32 r = threadIdx.x / 16 + i * (THREADS / 16);
            rows[i] = r < t.n_slots ? a.a + (i64)(t.slots[r] / a.slots_of_row) * a.k : nullptr;
            cols[i] = r < t.n_cols ? t.w + (i64)r * a.k : nullptr;
        }
        load_rows(rows, threadIdx.x % 16 * 4, a.k, next_a);
        load_rows(cols, threadIdx.x % 16 * 4, a.k, next_w);
        for (i32 k = 0; k < a.k; k += STEP) {
            __syncthreads();
            store_rows(lds_a, next_a);
            store_rows(lds_w, next_w);
            __syncthreads();
            load_rows(rows, k + STEP + threadIdx.x % 16 * 4, a.k, next_a);
            load_rows(cols, k + STEP + threadIdx.x % 16 * 4, a.k, next_w);
            multiply(sum, lds_a, lds_w, row, col, part);
        }
        store_sums(a, t, sum, row, col, part);
    }
}

/* Computes y[t], the sum over the slots j, in ascending order, of z[t·k + j] times the slot's weight. */
extern "C" __global__ void __launch_bounds__(THREADS) mf_sum_slots(const mf_hip_slots_args a)
{
    const i64 n = (i64)a.token * a.cols;
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < n; at += (i64)gridDim.x * THREADS) {
        const i64 token = at / a.cols, col = at % a.cols;
        float sum = 0;
        for (i32 j = 0; j < a.topk; j++) {
            const i64 slot = token * a.topk + j;
            sum = mf_plus(sum, mf_times(a.weights ? a.weights[slot] : 1.0f, a.z[slot * a.cols + col]));
        }
        a.y[at] = sum;
    }
}

/* For each row, computes the squared norms of a - b and of b, each from sixteen partial sums, like a dot
 * product. */
extern "C" __global__ void __launch_bounds__(THREADS) mf_differences(const mf_hip_difference_args a)
{
    __shared__ double lds[2][THREADS];
    const i32 part = threadIdx.x % PARTS, team = threadIdx.x / PARTS;
    for (i64 first = (i64)blockIdx.x * (THREADS / PARTS); first < a.rows;
         first += (i64)gridDim.x * (THREADS / PARTS)) {
        const i64 row = first + team;
        double difference = 0, norm = 0;
        for (i32 i = part; row < a.rows && i < a.cols; i += PARTS) {
            const double x = a.a[row * a.cols + i], y = a.b[row * a.cols + i], d = x - y;
            difference = mf_plus(difference, mf_times(d, d));
            norm = mf_plus(norm, mf_times(y, y));
        }
        lds[0][threadIdx.x] = difference;
        lds[1][threadIdx.x] = norm;
        for (i32 half = PARTS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (part < half) {
                lds[0][threadIdx.x] = mf_plus(lds[0][threadIdx.x], lds[0][threadIdx.x + half]);
                lds[1][threadIdx.x] = mf_plus(lds[1][threadIdx.x], lds[1][threadIdx.x + half]);
            }
        }
        if (part == 0 && row < a.rows) {
            a.out[2 * row] = lds[0][threadIdx.x];
            a.out[2 * row + 1] = lds[1][threadIdx.x];
        }
        __syncthreads();
    }
}
