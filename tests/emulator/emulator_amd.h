/* AMD's instructions on the emulator, under the names of clang's builtins; dialect_amd.h is compiled on top
 * of them. Matrix instructions follow the register maps of AMD's matrix instruction calculator: each lane
 * passes its registers, and the last lane of the wave computes the product. An instruction sums in double and
 * rounds once. */
#pragma once

/* ---- lanes ---- */

MF_DEVICE u32 __builtin_amdgcn_mbcnt_lo(u32 mask, u32 more)
{
    const u32 lane = threadIdx.x % 64;
    return more + __builtin_popcount(lane < 32 ? mask & ((1u << lane) - 1) : mask);
}
MF_DEVICE u32 __builtin_amdgcn_mbcnt_hi(u32 mask, u32 more)
{
    const u32 lane = threadIdx.x % 64;
    return more + (lane < 32 ? 0 : __builtin_popcount(mask & ((1u << (lane - 32)) - 1)));
}
static inline int mf_lane_addressed(int lane, int address)
{
    (void)lane;
    return address / 4 % 64;
}
MF_INSTRUCTION i32 __builtin_amdgcn_ds_bpermute(i32 address, i32 v)
{
    mf_exchange<i32> e = {v, address};
    mf_emulator->wave_collective(mf_emulator, "ds_bpermute", &e, mf_exchange_all<i32, mf_lane_addressed>,
                                 MF_PC);
    return e.value;
}
MF_UNINSTRUMENTED void mf_ballot_all(void **lanes)
{
    u64 set = 0;
    for (int l = 0; l < 64; l++)
        set |= (u64)(*(const u64 *)lanes[l] != 0) << l;
    for (int l = 0; l < 64; l++)
        *(u64 *)lanes[l] = set;
}
MF_INSTRUCTION u64 __builtin_amdgcn_uicmp(u32 a, u32 b, int not_equal)
{
    u64 mine = a != b;
    (void)not_equal;
    mf_emulator->wave_collective(mf_emulator, "v_cmp", &mine, mf_ballot_all, MF_PC);
    return mine;
}
/* Orders the wave's LDS accesses, together with the fences before and after the call. */
MF_INSTRUCTION void __builtin_amdgcn_wave_barrier()
{
    mf_emulator->wave_collective(mf_emulator, "wave_barrier", NULL, NULL, MF_PC);
}
#define __builtin_amdgcn_fence(order, scope) ((void)0)

/* ---- memory and time ---- */

#define __builtin_nontemporal_load(p) (*(p))
#define __HIP_MEMORY_SCOPE_AGENT      0
#define __HIP_MEMORY_SCOPE_WORKGROUP  0

template <class T> MF_UNINSTRUMENTED T __hip_atomic_load(T *p, int, int)
{
    return *(volatile T *)p;
}
template <class T> MF_UNINSTRUMENTED void __hip_atomic_store(T *p, T v, int, int)
{
    *p = v;
}
template <class T> MF_UNINSTRUMENTED T __hip_atomic_fetch_add(T *p, T v, int, int)
{
    const T old = *p;
    *p = old + v;
    return old;
}
MF_UNINSTRUMENTED u64 __builtin_amdgcn_s_memrealtime()
{
    return mf_emulator->clock_ns(mf_emulator) / 10;
}
MF_UNINSTRUMENTED void __builtin_amdgcn_s_sleep(int)
{
    mf_emulator->pause(mf_emulator);
}

MF_DEVICE float __builtin_amdgcn_rcpf(float x)
{
    return 1.0f / x;
}

/* v_perm_b32: byte i of the result is selected by byte i of `at`: 0 to 3 selects a byte of b, 4 to 7 a byte
 * of a, and 12 zero. */
MF_DEVICE u32 __builtin_amdgcn_perm(u32 a, u32 b, u32 at)
{
    const u64 bytes = (u64)a << 32 | b;
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        const u32 from = at >> 8 * i & 0xff;
        r |= (from < 8 ? (u32)(bytes >> 8 * from & 0xff) : from == 12 ? 0u : 0xffu) << 8 * i;
    }
    return r;
}

/* ---- v_mfma_f32_16x16xK, v_mfma_i32_16x16xK ---- */

/* Lane l holds EACH consecutive elements along K of row l % 16 of a and of column l % 16 of b; the first
 * element is EACH·(l / 16). The lane holds rows 4·(l / 16) to 4·(l / 16) + 3 of column l % 16 of d. */
template <int EACH, class SUM> struct mf_product {
    SUM d[4];
    float a[EACH], b[EACH];
};

template <int EACH, class SUM> MF_UNINSTRUMENTED void mf_product_all(void **lanes)
{
    double a[16][4 * EACH], b[4 * EACH][16], d[16][16];
    for (int l = 0; l < 64; l++) {
        const mf_product<EACH, SUM> *p = (const mf_product<EACH, SUM> *)lanes[l];
        for (int k = 0; k < EACH; k++) {
            a[l % 16][EACH * (l / 16) + k] = p->a[k];
            b[EACH * (l / 16) + k][l % 16] = p->b[k];
        }
        for (int i = 0; i < 4; i++)
            d[4 * (l / 16) + i][l % 16] = p->d[i];
    }
    mf_multiply(a, b, d);
    for (int l = 0; l < 64; l++) {
        for (int i = 0; i < 4; i++)
            ((mf_product<EACH, SUM> *)lanes[l])->d[i] = (SUM)d[4 * (l / 16) + i][l % 16];
    }
}

/* CDNA 2 flushes 16-bit subnormals to zero (PyTorch, numerical accuracy: "reduced precision ... on AMD
 * Instinct MI200"). */
#ifdef __gfx90a__
#    define MF_IS_FLUSHED(bits, exponent) (((bits) & (exponent)) == 0)
#else
#    define MF_IS_FLUSHED(bits, exponent) false
#endif
MF_UNINSTRUMENTED float mf_bf16_element(u64 bits)
{
    return MF_IS_FLUSHED(bits, 0x7f80) ? 0.0f : __uint_as_float((u32)bits << 16);
}
MF_UNINSTRUMENTED float mf_f16_element(u64 bits)
{
    return MF_IS_FLUSHED(bits, 0x7c00) ? 0.0f : mf_f16((u32)bits);
}
/* e4m3 FNUZ has bias 8, and the code of -0 means NaN. */
MF_UNINSTRUMENTED float mf_fnuz_element(u64 bits)
{
    const u32 e = bits >> 3 & 15, m = bits & 7;
    const float v = e == 0 ? (float)m * 0x1p-10f : __uint_as_float((e + 119) << 23 | m << 20);
    return bits == 0x80 ? NAN : bits & 0x80 ? -v : v;
}

MF_UNINSTRUMENTED float mf_s8_element(u64 bits)
{
    return (float)(signed char)bits;
}

template <int EACH, float (*ELEMENT)(u64), class SUM = float, class T, class D>
MF_UNINSTRUMENTED D mf_wave_product(const char *name, const T &a, const T &b, D c, const void *pc)
{
    const int bits = (int)sizeof(T) * 8 / EACH;
    const u64 mask = ((u64)1 << bits) - 1;
    mf_product<EACH, SUM> p;
    u64 a_bits = 0, b_bits = 0;
    memcpy(&a_bits, &a, sizeof(a));
    memcpy(&b_bits, &b, sizeof(b));
    for (int k = 0; k < EACH; k++) {
        p.a[k] = ELEMENT(a_bits >> bits * k & mask);
        p.b[k] = ELEMENT(b_bits >> bits * k & mask);
    }
    memcpy(p.d, &c, sizeof(p.d));
    mf_emulator->wave_collective(mf_emulator, name, &p, mf_product_all<EACH, SUM>, pc);
    memcpy(&c, p.d, sizeof(p.d));
    return c;
}
template <class T, class D>
MF_INSTRUCTION D __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(T a, T b, D c, int, int, int)
{
    return mf_wave_product<4, mf_bf16_element>("mfma_bf16", a, b, c, MF_PC);
}
template <class T, class D>
MF_INSTRUCTION D __builtin_amdgcn_mfma_f32_16x16x16f16(T a, T b, D c, int, int, int)
{
    return mf_wave_product<4, mf_f16_element>("mfma_f16", a, b, c, MF_PC);
}
template <class T, class D>
MF_INSTRUCTION D __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(T a, T b, D c, int, int, int)
{
    return mf_wave_product<8, mf_fnuz_element>("mfma_fp8", a, b, c, MF_PC);
}
#ifdef __gfx90a__
template <class D> MF_INSTRUCTION D __builtin_amdgcn_mfma_i32_16x16x16i8(i32 a, i32 b, D c, int, int, int)
{
    return mf_wave_product<4, mf_s8_element, i32>("mfma_i8", a, b, c, MF_PC);
}
#else
template <class D> MF_INSTRUCTION D __builtin_amdgcn_mfma_i32_16x16x32_i8(i64 a, i64 b, D c, int, int, int)
{
    return mf_wave_product<8, mf_s8_element, i32>("mfma_i8", a, b, c, MF_PC);
}
#endif

#include "dialect_amd.h"
