/* Numbers of four and eight bits as bf16, two to a word, exactly. Eight neighbours along K become four words of which word i
 * has numbers i and i + 4: the order in which shifts and masks give them, and in which whoever multiplies them has to have the
 * other operand. */
#pragma once

/* The same bf16 in both halves. */
MF_DEVICE u32 mf_bf16_both(float exact)
{
    return mf_bf16_pair(exact, exact);
}

/* e2m1: sign, exponent and fraction where bf16 has its own: the number by 2^-126, 0.5 as a subnormal. `factor` is a bf16 in
 * both halves; the product has to be one, too, without rounding. */
MF_DEVICE void mf_fp4_to_bf16(u32 eight, u32 factor, u32 (&ret)[4])
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 four = (i & 2 ? eight >> 8 : eight) & (i & 1 ? 0x00f000f0u : 0x000f000fu);
        /* the nibble at bit 12, for its sign, and at bit 6, for the rest */
        const u32 both = four * (i & 1 ? 0x104u : 0x1040u);
        ret[i] = mf_bf16_fma(both & 0x81c081c0u, factor, 0x80008000u);
    }
}

/* Two's complement: with its sign turned, q + 8, below the bits of 128 that is 136 + q. */
MF_DEVICE void mf_int4_to_bf16(u32 eight, u32 (&ret)[4])
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 shifted = ((eight >> 4 * i) & 0x000f000fu) ^ 0x43084308u;
        ret[i] = mf_bf16_fma(shifted, 0x3f803f80u, 0xc308c308u);
    }
}

/* e4m3, of which `low` has the first four: the number by 2^-120, by 2^-119 with MF_FNUZ. A NaN becomes a number: what makes an
 * element of a row one makes its scale one, too. */
MF_DEVICE void mf_fp8_to_bf16(u32 low, u32 high, u32 factor, u32 (&ret)[4])
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 two = (low >> 8 * i & 0xff) << 8 | (high >> 8 * i & 0xff) << 24;
        ret[i] = mf_bf16_fma((two & 0x80008000u) | (two >> 4 & 0x07f007f0u), factor, 0x80008000u);
    }
}

/* Eight bf16 in their order into that of the above. */
MF_DEVICE mf_16b mf_bf16_as_narrow(const mf_16b &v)
{
    return mf_16b{(v.x & 0xffff) | v.z << 16, v.x >> 16 | (v.z & 0xffff0000u), (v.y & 0xffff) | v.w << 16,
                  v.y >> 16 | (v.w & 0xffff0000u)};
}
