/* Grammar of AITER's kernel names, as patterns:
 *
 *    #        a decimal number
 *    (a|b|)   one of the alternatives; in this example the last alternative is empty
 *    [text]   optional text, which may contain numbers (#)
 *
 * All other characters match themselves. The matcher tries all alternatives (backtracking). */
#include "kernels/aiter/aiter.h"

#include <ctype.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* clang-format off */
static const char *const patterns[] = {
    /* mangled names of stage 1 and one-stage kernels; @ stands for "_ZN5aiter<length>" before the name and
     * "E" after it */
    "@fmoe_stage1_bf16_pertoken(Fp8|Int8)(_blockscale|)(_doweight|)_g1u1_#x#[_#tg](_pf2|_pf3)",
    "@fmoe_(bf16|fp16)_(pertokenFp8|pertokenInt8)_g1u1(_vs|_novs|)(_tkw1|)(_multix|_smf|)_(silu|gelu)[_#tg]"
    "(_ps|)_#x#",
    "@fmoe_(bf16|fp16)_blockscale(Fp8|Bf16)_g1u1(_flat|)(_vs|_novs|)(_ps|)(_pf2|_pf3|)_(silu|gelu)(_1tg|)"
    "(_ps|)_#x#",
    "@fmoe_bf16_a16_blockscaleFp8_g1u1_vs_silu_1tg(_ps|_emsort|)_#x#(_flat|)(_pf3|)",
    "@fmoe_bf16_pertokenMXfp4_g1u1(_flat|)(_vs|_novs)_(silu|gelu)(_1tg|)(_ps|)_#x#",

    "moe_ck2stages_gemm1_#x#x#x#_#x#_(TypeCast|MulABScale)(ExpertWeight|)(A8W8blkscale|Shuffled|)(Splitk|)"
    "_v#_Nswizzle#_Quant#_MulRoutedWeight#_(silu|gelu|swiglu|situv2)"
    "_(B16|F8|I8|FP4X2)_(B16|F8|I8|FP4X2)_(B16|F16)",
    "moe_ck2stages_gemm2_#x#x#x#_#x#_(TypeCast|MulABScale)(ExpertWeight|)(A8W8blkscale|Shuffled|)"
    "_v#_Nswizzle#_Quant#_MulRoutedWeight#_(B16|F8|I8|FP4X2)_(B16|F8|I8|FP4X2)_(B16|F16)",
    "cktile_a8w4_bm#",
    "swiglu_mxfp4_bf16_cktile",

    "flydsl_moe1_a(fp8|fp4|bf16)_w(fp4|fp8|int4)_(bf16|f16)_t#x#x#[_w#][_kb#](_bnt0|)(_go|)(_gui|)[_xcd#]"
    "[_kw#](_fp4|_fp8|)",
    "flydsl_moe2_a(fp8|fp4|bf16)_w(fp4|fp8|int4)_(bf16|f16)_t#x#x#_(atomic|reduce)(_bnt2|)[_xcd#](_persist|)"
    "(_async_w4_cumul3|)[_sbm#]",
    "flydsl_moe2_layout_a(fp8|fp4)_w(fp4|fp8)_(bf16|f16)_t#x#x#_(atomic|reduce)(_persist|)(_nt|)[_sbm#]"
    "(_bf16lds|)[_sp#]",
    "flydsl_mxmoe_g1_a(4|8)w4_#x#x#(_f16in|)(_nt|)(_il|)(_fp8out|)[_xcd#]",
    "flydsl_mxmoe_g2_a(4|8)w4_#x#x#(_atomic|)(_nt|)(_f4out|)(_cshuffle|)",

    "opus_moe1_afp8_wfp4_bf16_t#x#_(pair|gs)[_kw#][_qgb#][_m#](_stream|)[_k#][_bt#][_aff#][_p#](_mmajor|)"
    "(_k1lead|)_fp8",
    "opus_moe2_(layout_|)afp8_wfp4_(atomic|fp8|bf16)_t#x#x#_sbm#[_occ#](_small|)[_cache_b#][_ws#][_rbn#]"
    "[_xw#]",

    "aiter_moe_sorting_m#",
    "aiter_quant_x",
    "aiter_quant_h_m#",
    "aiter_zero_moe_buf",
};
/* clang-format on */

/* Matches text and numbers of the pattern *p up to a character in `stop`, and sets *p to that character.
 * Returns the rest of the name, or NULL if the name does not match. */
static const char *match_plain(const char **p, const char *stop, const char *name)
{
    for (; **p && !strchr(stop, **p); (*p)++) {
        if (!name)
            continue;
        if (**p == '#') {
            size_t n = strspn(name, "0123456789");
            name = n > 0 ? name + n : NULL;
        } else {
            name = *name == **p ? name + 1 : NULL;
        }
    }
    return name;
}

static bool match(const char *p, const char *name)
{
    name = match_plain(&p, "([", name);
    if (!name || !*p)
        return name && !*name;
    bool optional = *p == '[';
    const char *close = strchr(p, optional ? ']' : ')');
    while (p < close) {
        p++;
        const char *rest = match_plain(&p, "|])", name);
        if (rest && match(close + 1, rest))
            return true;
    }
    return optional && match(close + 1, name);
}

/* Writes '@' and the name in "_ZN5aiter<length><name>E" to ret. Returns false if the form or the length is
 * wrong. */
static bool unmangle(const char *name, char ret[MF_STEP_NAME_MAX])
{
    static const char frame[] = "_ZN5aiter";
    size_t len = 0, n_digits;
    if (strncmp(name, frame, strlen(frame)) != 0)
        return false;
    name += strlen(frame);
    n_digits = strspn(name, "0123456789");
    for (size_t i = 0; i < n_digits && len < MF_STEP_NAME_MAX; i++)
        len = len * 10 + (size_t)(name[i] - '0');
    name += n_digits;
    if (n_digits == 0 || len + 2 > MF_STEP_NAME_MAX || strlen(name) != len + 1 || name[len] != 'E')
        return false;
    ret[0] = '@';
    memcpy(ret + 1, name, len);
    ret[len + 1] = '\0';
    return true;
}

bool mf_aiter_name_parse(const char *name)
{
    char plain[MF_STEP_NAME_MAX];
    bool mangled = unmangle(name, plain);
    for (size_t i = 0; i < MF_ARRAY_LEN(patterns); i++) {
        if ((patterns[i][0] == '@') == mangled && match(patterns[i], mangled ? plain : name))
            return true;
    }
    return false;
}
