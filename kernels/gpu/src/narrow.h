/* Exact conversion of 4-bit and 8-bit values to bf16, two per word. Eight adjacent values along K become four
 * words. Word i holds elements i and i + 4, because shifts and masks produce this order. The other MMA
 * operand must use the same order. */
#pragma once

/* Returns the same bf16 in both halves of a word. */
MF_DEVICE u32 mf_bf16_broadcast(float exact)
{
    return mf_bf16_pair(exact, exact);
}

/* Converts eight e2m1 and multiplies them by `factor`, the same bf16 in both halves of a word. Moving sign,
 * exponent and fraction to their bf16 positions yields the value times 2^-126, where 0.5 becomes a subnormal.
 * Each product must be exact in bf16. */
MF_DEVICE void mf_fp4_to_bf16(u32 eight, u32 factor, u32 (&ret)[4])
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 four = (i & 2 ? eight >> 8 : eight) & (i & 1 ? 0x00f000f0u : 0x000f000fu);
        /* the multiplication copies each nibble to bit 12, for its sign, and to bit 6, for its other bits */
        const u32 both = four * (i & 1 ? 0x104u : 0x1040u);
        ret[i] = mf_bf16_fma(both & 0x81c081c0u, factor, 0x80008000u);
    }
}

/* Converts eight int4. A nibble is the two's complement of q; after its sign bit is flipped, it is q + 8.
 * Placed in the low fraction bits of 128, it yields 136 + q, and 136 is then subtracted. */
MF_DEVICE void mf_int4_to_bf16(u32 eight, u32 (&ret)[4])
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 shifted = ((eight >> 4 * i) & 0x000f000fu) ^ 0x43084308u;
        ret[i] = mf_bf16_fma(shifted, 0x3f803f80u, 0xc308c308u);
    }
}

/* Converts eight e4m3 and multiplies them by `factor`. `low` has the first four values, `high` the last four.
 * Moving the bits yields the value times 2^-120, or 2^-119 with MF_FNUZ. A NaN becomes a finite number, but
 * then the scale of its row is itself NaN. */
MF_DEVICE void mf_fp8_to_bf16(u32 low, u32 high, u32 factor, u32 (&ret)[4])
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 two = (low >> 8 * i & 0xff) << 8 | (high >> 8 * i & 0xff) << 24;
        ret[i] = mf_bf16_fma((two & 0x80008000u) | (two >> 4 & 0x07f007f0u), factor, 0x80008000u);
    }
}

/* Reorders eight bf16 from memory order to the order of this file. */
MF_DEVICE mf_16b mf_bf16_as_narrow(const mf_16b &v)
{
    return mf_16b{(v.x & 0xffff) | v.z << 16, v.x >> 16 | (v.z & 0xffff0000u), (v.y & 0xffff) | v.w << 16,
                  v.y >> 16 | (v.w & 0xffff0000u)};
}
