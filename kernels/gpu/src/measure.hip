/* Measurement kernels of the device module: a delay before the timed work, an empty kernel, a memory
 * reader, peak matrix throughput without memory traffic, the eviction of L2 and instruction caches, and
 * atomic latency per L2 line. */
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

/* Reads memory with eight loads of 16 bytes in flight per thread. The sum is stored only if it has an
 * impossible value, which keeps the compiler from removing the loads. */
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

/* Evicts other kernels' code from the SM's instruction cache. */
extern "C" __global__ void __launch_bounds__(256) mf_evict_code(const mf_hip_evict_args a)
{
    if (mf_run_code((float)a.bytes) == 1.25f) /* never true */
        *(u8 *)a.at = 0;
}

#ifdef MF_FORGETS_LINES
/* Evicts the L2 cache in two launches. The first launch fills it with dirty lines, so that earlier writes go
 * to memory. The second launch discards these lines. Reads alone would not evict dirty lines. */
extern "C" __global__ void __launch_bounds__(512) mf_evict_fill(const mf_hip_evict_args a)
{
    for (u64 at = ((u64)blockIdx.x * 512 + threadIdx.x) * 16; at < a.bytes; at += (u64)gridDim.x * 512 * 16)
        *(mf_16b *)((u8 *)a.at + at) = mf_16b{1, 2, 3, 4};
}
extern "C" __global__ void __launch_bounds__(512) mf_evict_discard(const mf_hip_evict_args a)
{
    for (u64 at = ((u64)blockIdx.x * 512 + threadIdx.x) * 128; at < a.bytes; at += (u64)gridDim.x * 512 * 128)
        mf_discard_line((u8 *)a.at + at);
}
#endif

#ifdef MF_WGMMA
#    include "dialect_hopper.h"

/* Measures the minimum cycles of an atomic add to each line from this SM. The add executes in the L2
 * partition that owns the line. The grid has one block per SM. In a process that is limited to some SMs, SMs
 * with an index beyond the grid size are skipped. */
extern "C" __global__ void mf_add_cycles(const mf_hip_add_cycles_args a)
{
    const u32 sm = (u32)mf_sm_id();
    for (u32 line = 0; threadIdx.x == 0 && sm < gridDim.x && line < a.n_lines; line++) {
        u32 *p = (u32 *)((u8 *)a.lines + line * a.stride), least = ~0u;
        for (u32 iteration = 0; iteration < a.turns; iteration++) {
            const u64 start = mf_cycles();
            /* never true; makes the second clock read wait for the result */
            if (mf_fetch_increment(p) == ~0u)
                return;
            least = MF_MIN(least, (u32)(mf_cycles() - start));
        }
        a.cycles[sm * a.n_lines + line] = least;
    }
}

#    define MULTIPLY  mf_wgmma<32>
#    define PEAK_ROWS (64 + 256)

struct peaking {
    u32 turns, seed;
    float *sum;
};

/* In each iteration, each of two warpgroups runs four WGMMAs of 64x256 along 32 bytes. Operands are not zero.
 */
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
    const u64 w = mf_wgmma_descriptor(lds), x = mf_wgmma_descriptor(lds + 64 * 32);
    for (u32 iteration = 0; iteration < a.turns; iteration++) {
        mf_wgmma_fence();
        MF_UNROLL
        for (int s = 0; s < 4; s++) {
            if (fp8)
                MULTIPLY::fp8(d, w + 2 * s, x + 2 * s, 1);
            else
                MULTIPLY::bf16(d, w + 2 * s, x + 2 * s, 1);
        }
        mf_wgmma_commit();
        mf_wgmma_wait<1>();
    }
    mf_wgmma_wait<0>();
    float sum = 0;
    for (int i = 0; i < 128; i++) {
        mf_wgmma_fence_operand(d[i / 4][i % 4]);
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

/* In each iteration, each warp computes 16 products of 16 rows by MF_MMA_COLS columns, along the part of K
 * that one operand load supplies. Operands are not zero. */
extern "C" __global__ void __launch_bounds__(256) mf_peak(const peaking a)
{
    float d[16][4] = {};
    u32 x[MF_MMA_A], y[MF_MMA_B];
    for (int i = 0; i < MF_MMA_A; i++)
        x[i] = 0x3f803e80u + (threadIdx.x * 77 + i * 13 + a.seed) % 64 * 0x00010001u;
    for (int i = 0; i < MF_MMA_B; i++)
        y[i] = 0x3e993f00u + (threadIdx.x * 31 + i * 7) % 64 * 0x00010001u;
    for (u32 iteration = 0; iteration < a.turns; iteration++) {
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
