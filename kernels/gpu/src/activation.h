/* Activation functions as defined by kernels/reference/reference.h. Each compiled kernel contains one of
 * them.
 *
 *   MF_ACT      silu, gelu, … as MF_ACT_* below
 *   MF_LIMIT    limit to which gate and up are clamped; 0: no limit
 *   MF_ALPHA    factor of Swiglu */
#pragma once

#define MF_ACT_SILU      0
#define MF_ACT_GELU      1
#define MF_ACT_SWIGLU    2
#define MF_ACT_SITUV2    3
#define MF_ACT_NO        4
#define MF_ACT_GELU_TANH 5
#define MF_ACT_SILU_STEP 6
#define MF_ACT_RELU2     7

/* Returns the activation of gate alone. For a layer without up, this is the whole activation. */
MF_DEVICE float mf_activate_gate(float gate)
{
    const float limit = MF_LIMIT, g = limit > 0 ? fminf(gate, limit) : gate;
    if (MF_ACT == MF_ACT_SILU)
        return g * mf_sigmoid(g);
    if (MF_ACT == MF_ACT_GELU)
        return 0.5f * gate * (1.0f + erff(gate * 0.70710678f));
    if (MF_ACT == MF_ACT_SWIGLU)
        return g * mf_sigmoid(MF_ALPHA * g);
    if (MF_ACT == MF_ACT_SITUV2)
        return 4.0f * tanhf(gate * 0.25f) * mf_sigmoid(gate);
    if (MF_ACT == MF_ACT_GELU_TANH)
        return 0.5f * gate * (1.0f + tanhf(0.7978845608f * (gate + 0.044715f * gate * gate * gate)));
    if (MF_ACT == MF_ACT_SILU_STEP) {
        const float s = gate * mf_sigmoid(gate);
        return limit > 0 ? fminf(s, limit) : s;
    }
    if (MF_ACT == MF_ACT_RELU2) {
        const float positive = fmaxf(gate, 0.0f);
        return positive * positive;
    }
    return gate;
}

MF_DEVICE float mf_activate(float gate, float up)
{
    const float limit = MF_LIMIT, u = limit > 0 ? fminf(fmaxf(up, -limit), limit) : up;
    if (MF_ACT == MF_ACT_SWIGLU)
        return mf_activate_gate(gate) * (u + 1.0f);
    if (MF_ACT == MF_ACT_SITUV2)
        return mf_activate_gate(gate) * (25.0f * tanhf(up * 0.04f));
    return mf_activate_gate(gate) * u;
}
