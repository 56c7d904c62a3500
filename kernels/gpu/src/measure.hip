/* What the device module measures with: a delay in front of what is timed, an empty kernel, a reader of memory, matrix
 * instructions without memory, and the canary, which does a little of each; what washes the last cache; and adds to lines that are
 * near or far. */
#include "dialect.h"
#include "args.h"

extern "C" __global__ void mf_delay(const u64 nanoseconds)
{
    const u64 start = mf_clock_ns();
    while (mf_clock_ns() - start < nanoseconds)
        mf_pause();
}

extern "C" __global__ void mf_nothing(const u64 unused)
{
    (void)unused;
}

struct reading {
    const u8 *from;
    u64 bytes;
    u32 *sum;
};

/* 8 x 16 bytes of a thread in flight; the sum is stored only when it is what it never is. */
extern "C" __global__ void __launch_bounds__(512) mf_read(const reading a)
{
    const u64 stride = (u64)gridDim.x * 512 * 16;
    u32 sum = 0;
    for (u64 at = ((u64)blockIdx.x * 512 + threadIdx.x) * 16; at + 7 * stride < a.bytes; at += 8 * stride) {
        mf_16b v[8];
        MF_UNROLL
        for (int i = 0; i < 8; i++)
            v[i] = mf_load_once(a.from + at + i * stride);
        MF_UNROLL
        for (int i = 0; i < 8; i++)
            sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x9e3779b9u)
        *a.sum = sum;
}

/* What a unit keeps of other kernels' code gives way to this one's. */
extern "C" __global__ void __launch_bounds__(256) mf_wash_code(const mf_hip_wash_args a)
{
    if (mf_run_code((float)a.bytes) == 1.25f) /* never */
        *(u8 *)a.at = 0;
}

#ifdef MF_FORGETS_LINES
/* The last cache is washed by two launches. What the first one writes takes the place of all that is there, so that what others wrote is
 * put away; the second gives it up itself. Lines that are only read leave lines that were written where they are (H200). */
extern "C" __global__ void __launch_bounds__(512) mf_wash_fill(const mf_hip_wash_args a)
{
    for (u64 at = ((u64)blockIdx.x * 512 + threadIdx.x) * 16; at < a.bytes; at += (u64)gridDim.x * 512 * 16)
        *(mf_16b *)((u8 *)a.at + at) = mf_16b{1, 2, 3, 4};
}
extern "C" __global__ void __launch_bounds__(512) mf_wash_forget(const mf_hip_wash_args a)
{
    for (u64 at = ((u64)blockIdx.x * 512 + threadIdx.x) * 128; at < a.bytes; at += (u64)gridDim.x * 512 * 128)
        mf_forget_line((u8 *)a.at + at);
}
#endif

#ifdef MF_WGMMA
#    include "dialect_hopper.h"

/* How many cycles an add to each line takes of this unit, the fewest of some turns. It is done where the line is at home. There are as
 * many blocks as units; a unit of a higher number, where a process is given a part of them, is not told of. */
extern "C" __global__ void mf_add_cycles(const mf_hip_add_cycles_args a)
{
    const u32 unit = (u32)mf_unit();
    for (u32 line = 0; threadIdx.x == 0 && unit < gridDim.x && line < a.n_lines; line++) {
        u32 *p = (u32 *)((u8 *)a.lines + line * a.stride), least = ~0u;
        for (u32 turn = 0; turn < a.turns; turn++) {
            const u64 start = mf_cycles();
            if (mf_take_one(p) == ~0u) /* never; but the clock is read again only when this is known */
                return;
            least = MF_MIN(least, (u32)(mf_cycles() - start));
        }
        a.cycles[unit * a.n_lines + line] = least;
    }
}

#    define MULTIPLY mf_matrix_multiply<32>
#    define PEAK_ROWS (64 + 256)

struct peaking {
    u32 turns, seed;
    float *sum;
};

/* 4 products of 64x256 along 32 bytes a turn for each of two groups of four waves; operands that are no zeros. */
MF_DEVICE void peak(const peaking &a, bool fp8)
{
    __shared__ __align__(1024) u32 lds[PEAK_ROWS * 32];
    float d[32][4];
    for (u32 i = threadIdx.x; i < PEAK_ROWS * 32; i += blockDim.x)
        lds[i] = fp8 ? 0x38303438u ^ ((i * 2654435761u + a.seed) & 0x87878787u)
                     : 0x3f803e80u ^ ((i * 2654435761u + a.seed) & 0x807f807fu);
    for (int i = 0; i < 128; i++)
        d[i / 4][i % 4] = 0;
    mf_async_fence();
    __syncthreads();
    const u64 w = mf_matrix_of(lds), x = mf_matrix_of(lds + 64 * 32);
    for (u32 turn = 0; turn < a.turns; turn++) {
        mf_matrix_begin();
        MF_UNROLL
        for (int s = 0; s < 4; s++) {
            if (fp8)
                MULTIPLY::fp8(d, w + 2 * s, x + 2 * s, 1);
            else
                MULTIPLY::bf16(d, w + 2 * s, x + 2 * s, 1);
        }
        mf_matrix_commit();
        mf_matrix_wait<1>();
    }
    mf_matrix_wait<0>();
    float sum = 0;
    for (int i = 0; i < 128; i++) {
        mf_matrix_hold(d[i / 4][i % 4]);
        sum += d[i / 4][i % 4];
    }
    if (sum == 1.2345f)
        *a.sum = sum;
}

extern "C" __global__ void __launch_bounds__(256) mf_peak(const peaking a)
{
    peak(a, false);
}
extern "C" __global__ void __launch_bounds__(256) mf_peak_fp8(const peaking a)
{
    peak(a, true);
}
#else
struct peaking {
    u32 turns, seed;
    float *sum;
};

/* 16 products of 16 rows by MF_MMA_COLS a turn and wave, along what one load of operands holds; no zeros. */
extern "C" __global__ void __launch_bounds__(256) mf_peak(const peaking a)
{
    float d[16][4] = {};
    u32 x[MF_MMA_A], y[MF_MMA_B];
    for (int i = 0; i < MF_MMA_A; i++)
        x[i] = 0x3f803e80u + (threadIdx.x * 77 + i * 13 + a.seed) % 64 * 0x00010001u;
    for (int i = 0; i < MF_MMA_B; i++)
        y[i] = 0x3e993f00u + (threadIdx.x * 31 + i * 7) % 64 * 0x00010001u;
    for (u32 turn = 0; turn < a.turns; turn++) {
        MF_UNROLL
        for (int i = 0; i < 16; i++)
            mf_mma_bf16(d[i], x, y);
    }
    float sum = 0;
    for (int i = 0; i < 16; i++)
        sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
    if (sum == 1.2345f)
        *a.sum = sum;
}
#endif
