/* The primitives of dialect_nvidia.h on the emulator. Matrix instructions follow the register maps of the PTX
 * ISA (ldmatrix; mma.m16n8k16): each lane passes its registers, and the last lane of the warp computes the
 * product. An instruction sums in double and rounds once. */
#pragma once

#define MF_BOUNDS(threads, blocks)
#include "nvidia_plain.h"
#include "soft.h"

/* ---- lanes of a warp ---- */

static inline int mf_lane_xor(int lane, int mask)
{
    return lane ^ mask;
}
static inline int mf_lane_below(int lane, int delta)
{
    return lane - delta;
}

MF_INSTRUCTION float mf_shuffle_xor(float v, int mask)
{
    mf_exchange<float> e = {v, mask};
    mf_emulator->wave_collective(mf_emulator, "mf_shuffle_xor", &e, mf_exchange_all<float, mf_lane_xor>,
                                 MF_PC);
    return e.value;
}
MF_INSTRUCTION i32 mf_shuffle_xor(i32 v, int mask)
{
    mf_exchange<i32> e = {v, mask};
    mf_emulator->wave_collective(mf_emulator, "mf_shuffle_xor", &e, mf_exchange_all<i32, mf_lane_xor>, MF_PC);
    return e.value;
}
MF_INSTRUCTION i32 mf_shuffle_up(i32 v, int delta)
{
    mf_exchange<i32> e = {v, delta};
    mf_emulator->wave_collective(mf_emulator, "mf_shuffle_up", &e, mf_exchange_all<i32, mf_lane_below>,
                                 MF_PC);
    return e.value;
}

MF_UNINSTRUMENTED void mf_match_all(void **lanes)
{
    u64 same[MF_WAVE];
    for (int l = 0; l < MF_WAVE; l++) {
        same[l] = 0;
        for (int other = 0; other < MF_WAVE; other++)
            same[l] |= (u64)(*(u64 *)lanes[other] == *(u64 *)lanes[l]) << other;
    }
    for (int l = 0; l < MF_WAVE; l++)
        *(u64 *)lanes[l] = same[l];
}
template <u32 BOUND> MF_INSTRUCTION u64 mf_match(u32 v)
{
    u64 mine = v;
    mf_emulator->wave_collective(mf_emulator, "mf_match", &mine, mf_match_all, MF_PC);
    return mine;
}
MF_DEVICE int mf_popcount(u64 v)
{
    return __builtin_popcountll(v);
}
MF_INSTRUCTION void mf_wave_sync()
{
    mf_emulator->wave_collective(mf_emulator, "mf_wave_sync", NULL, NULL, MF_PC);
}

/* The addition is atomic because lanes switch only at calls, so the shadow memory need not check it. */
MF_UNINSTRUMENTED void mf_add_shared(i32 *lds, i32 v)
{
    *lds += v;
}

/* Emulated launches run one after another, so there is no preceding launch to wait for. */
MF_DEVICE void mf_begin()
{
}
MF_DEVICE void mf_prefetch_l2(const void *global, u32 bytes)
{
    (void)global, (void)bytes;
}

/* ---- global memory ---- */

MF_INSTRUCTION void mf_copy_async_16(void *lds, const void *global, bool valid)
{
    mf_emulator->copy(mf_emulator, lds, global, 16, valid ? 16 : 0, MF_PC);
}
MF_INSTRUCTION void mf_copy_async_4(void *lds, const void *global, bool valid)
{
    mf_emulator->copy(mf_emulator, lds, global, 4, valid ? 4 : 0, MF_PC);
}
MF_INSTRUCTION void mf_copy_async_up_to_4(void *lds, const void *global, i32 bytes)
{
    mf_emulator->copy(mf_emulator, lds, global, 4, bytes, MF_PC);
}
MF_UNINSTRUMENTED void mf_copy_commit()
{
    mf_emulator->copy_commit(mf_emulator);
}
template <int N> MF_UNINSTRUMENTED void mf_copy_wait()
{
    mf_emulator->copy_wait(mf_emulator, N);
}

/* A vector type, so that the value is returned in a register. A structure could be stored inside the
 * primitive, and the hooks would not see that store. */
typedef u32 mf_four __attribute__((vector_size(16)));
MF_INSTRUCTION mf_four mf_load_four(const void *p)
{
    mf_emulator->access(mf_emulator, p, 16, MF_ACCESS_READ, MF_PC);
    return *(const mf_four *)p;
}
MF_DEVICE mf_16b mf_load_once(const void *p)
{
    const mf_four v = mf_load_four(p);
    return mf_16b{v[0], v[1], v[2], v[3]};
}
MF_INSTRUCTION i32 mf_load_shared_by_grid_4(const void *p)
{
    mf_emulator->access(mf_emulator, p, 4, MF_ACCESS_READ, MF_PC);
    return *(const i32 *)p;
}
MF_DEVICE mf_16b mf_load_shared_by_grid(const void *p)
{
    const mf_four v = mf_load_four(p);
    return mf_16b{v[0], v[1], v[2], v[3]};
}

/* ---- conversions ---- */

MF_DEVICE u32 mf_bf16_pair(float low, float high)
{
    return mf_soft_bf16(low) | mf_soft_bf16(high) << 16;
}

MF_DEVICE u32 mf_bf16_fma(u32 a, u32 b, u32 c)
{
    const float low = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), __uint_as_float(c << 16));
    const float high =
        fmaf(__uint_as_float(a & ~0xffffu), __uint_as_float(b & ~0xffffu), __uint_as_float(c & ~0xffffu));
    return mf_bf16_pair(low, high);
}

MF_DEVICE float mf_f16_low(u32 two)
{
    return mf_f16(two & 0xffff);
}
MF_DEVICE float mf_f16_high(u32 two)
{
    return mf_f16(two >> 16);
}

/* e4m3 has 4 exponent bits with bias 7, no infinities, and one NaN per sign. Every value is a normal f16
 * number. */
MF_DEVICE u32 mf_fp8_to_f16(u32 code)
{
    const u32 sign = (code & 0x80) << 8, e = code >> 3 & 15, m = code & 7;
    if ((code & 0x7f) == 0x7f)
        return sign | 0x7fff;
    if (e > 0)
        return sign | (e + 8) << 10 | m << 7;
    if (m == 0)
        return sign;
    const u32 top = 31 - __builtin_clz(m); /* m · 2^-9 */
    return sign | (top + 6) << 10 | (m << (10 - top) & 1023);
}
MF_DEVICE u32 mf_fp8_to_f16_pair(u32 four, int half)
{
    const u32 two = half ? four >> 16 : four;
    return mf_fp8_to_f16(two & 0xff) | mf_fp8_to_f16(two >> 8 & 0xff) << 16;
}
MF_DEVICE u32 mf_fp8_pair(float low, float high)
{
    return mf_soft_fp8(low, 7) | mf_soft_fp8(high, 7) << 8;
}
MF_DEVICE float mf_divide(float a, float b)
{
    return a / b;
}
/* Returns the worse of the two floats around the exact inverse, because callers must give correct results
 * with either float. */
MF_DEVICE float mf_inverse_near(float x)
{
    const float nearest = 1.0f / x, left = fmaf(-nearest, x, 1.0f);
    return left < 0 ? nextafterf(nearest, 0.0f) : left > 0 ? nextafterf(nearest, INFINITY) : nearest;
}
MF_DEVICE float mf_sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}
/* The emulator's kernels are compiled without contraction into FMA. */
template <class T> MF_DEVICE T mf_times(T a, T b)
{
    return a * b;
}
template <class T> MF_DEVICE T mf_plus(T a, T b)
{
    return a + b;
}

/* ---- ldmatrix ---- */

struct mf_matrix_rows {
    const void *row; /* address that this lane passes: a row of one of the matrices */
    int n;           /* number of matrices */
    u32 r[4];
};

MF_UNINSTRUMENTED void mf_load_matrix_all(void **lanes)
{
    for (int l = 0; l < MF_WAVE; l++) {
        mf_matrix_rows *mine = (mf_matrix_rows *)lanes[l];
        for (int m = 0; m < mine->n; m++) {
            const mf_matrix_rows *named = (const mf_matrix_rows *)lanes[m * 8 + l / 4];
            memcpy(&mine->r[m], (const u8 *)named->row + l % 4 * 4, 4);
        }
    }
}
MF_INSTRUCTION void mf_load_matrix_4(u32 (&r)[4], const void *lds)
{
    mf_matrix_rows rows = {lds, 4, {}};
    mf_emulator->access(mf_emulator, lds, 16, MF_ACCESS_READ, MF_PC);
    mf_emulator->wave_collective(mf_emulator, "mf_load_matrix_4", &rows, mf_load_matrix_all, MF_PC);
    memcpy(r, rows.r, sizeof(r));
}
/* The instruction ignores the addresses of the upper 16 lanes. */
MF_INSTRUCTION void mf_load_matrix_2(u32 (&r)[2], const void *lds)
{
    mf_matrix_rows rows = {lds, 2, {}};
    if (mf_now_thread().x % MF_WAVE < 16)
        mf_emulator->access(mf_emulator, lds, 16, MF_ACCESS_READ, MF_PC);
    mf_emulator->wave_collective(mf_emulator, "mf_load_matrix_2", &rows, mf_load_matrix_all, MF_PC);
    memcpy(r, rows.r, sizeof(r));
}

/* ---- mma.m16n8k32 for int8 ---- */

struct mf_int8_product {
    i32 *d;
    u32 a[4], b[2];
};

/* With l = 4·g + t, the registers of lane l hold columns 4·t to 4·t + 3 and 4·t + 16 to 4·t + 19 of rows g
 * and g + 8 of a. They hold the same columns of row g of the transposed b. The indices of d are as in
 * mf_product_all. */
MF_UNINSTRUMENTED void mf_int8_product_all(void **lanes)
{
    double a[16][32], b[32][8], d[16][8];
    for (int l = 0; l < MF_WAVE; l++) {
        const mf_int8_product *p = (const mf_int8_product *)lanes[l];
        const int g = l / 4, t = l % 4;
        for (int i = 0; i < 16; i++) /* register i / 4, byte i % 4 */
            a[g + i / 4 % 2 * 8][4 * t + i % 4 + i / 8 * 16] = (signed char)(p->a[i / 4] >> 8 * (i % 4));
        for (int i = 0; i < 8; i++)
            b[4 * t + i % 4 + i / 4 * 16][g] = (signed char)(p->b[i / 4] >> 8 * (i % 4));
        for (int i = 0; i < 4; i++)
            d[g + i / 2 * 8][2 * t + i % 2] = p->d[i];
    }
    mf_multiply(a, b, d);
    for (int l = 0; l < MF_WAVE; l++) {
        for (int i = 0; i < 4; i++)
            ((const mf_int8_product *)lanes[l])->d[i] = (i32)d[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    }
}
MF_INSTRUCTION void mf_mma_s8(i32 (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_int8_product p = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    mf_emulator->wave_collective(mf_emulator, "mf_mma_s8", &p, mf_int8_product_all, MF_PC);
}

/* ---- mma.m16n8k16 ---- */

struct mf_product {
    float *d;
    u32 a[4], b[2];
    bool bf16;
};

MF_UNINSTRUMENTED float mf_product_element(u32 two, int high, bool bf16)
{
    const u32 bits = high ? two >> 16 : two & 0xffff;
    return bf16 ? __uint_as_float(bits << 16) : mf_f16(bits);
}

/* With l = 4·g + t, the registers of lane l hold columns 2·t, 2·t + 1, 2·t + 8 and 2·t + 9 of rows g and g +
 * 8 of a. They hold the same columns of row g of the transposed b, and columns 2·t and 2·t + 1 of rows g and
 * g + 8 of d. */
MF_UNINSTRUMENTED void mf_product_all(void **lanes)
{
    double a[16][16], b[16][8], d[16][8];
    for (int l = 0; l < MF_WAVE; l++) {
        const mf_product *p = (const mf_product *)lanes[l];
        const int g = l / 4, t = l % 4;
        for (int i = 0; i < 8; i++) /* register i / 2, low or high half */
            a[g + (i / 2 % 2) * 8][2 * t + i % 2 + i / 4 * 8] =
                mf_product_element(p->a[i / 2], i % 2, p->bf16);
        for (int i = 0; i < 4; i++) {
            b[2 * t + i % 2 + i / 2 * 8][g] = mf_product_element(p->b[i / 2], i % 2, p->bf16);
            d[g + i / 2 * 8][2 * t + i % 2] = p->d[i];
        }
    }
    mf_multiply(a, b, d);
    for (int l = 0; l < MF_WAVE; l++) {
        for (int i = 0; i < 4; i++)
            ((const mf_product *)lanes[l])->d[i] = (float)d[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    }
}
MF_INSTRUCTION void mf_mma_bf16(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_product p = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, true};
    mf_emulator->wave_collective(mf_emulator, "mf_mma_bf16", &p, mf_product_all, MF_PC);
}
MF_INSTRUCTION void mf_mma_f16(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_product p = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, false};
    mf_emulator->wave_collective(mf_emulator, "mf_mma_f16", &p, mf_product_all, MF_PC);
}

/* ---- time and grid synchronisation ---- */

MF_UNINSTRUMENTED u64 mf_clock_ns()
{
    return mf_emulator->clock_ns(mf_emulator);
}
MF_UNINSTRUMENTED void mf_pause()
{
    mf_emulator->pause(mf_emulator);
}

MF_UNINSTRUMENTED void mf_grid_arrive(u32 *barrier, u32 *ret_generation)
{
    __syncthreads();
    if (mf_now_thread().x == 0) {
        *ret_generation = barrier[1];
        if (++barrier[0] == mf_now_grid_dim().x) {
            barrier[0] = 0;
            barrier[1]++;
        }
    }
}
MF_UNINSTRUMENTED void mf_grid_wait(u32 *barrier, u32 generation)
{
    while (mf_now_thread().x == 0 && *(volatile u32 *)(barrier + 1) == generation)
        mf_pause();
    __syncthreads();
}
