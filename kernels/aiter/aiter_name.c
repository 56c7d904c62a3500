/* Recognises AITER's kernel names. Prebuilt kernels, instances of composable kernel and of Opus are compared
 * with AITER's lists; the names of other kernels follow a grammar of patterns:
 *
 *    #        a decimal number
 *    (a|b|)   one of the alternatives; in this example the last alternative is empty
 *    [text]   optional text, which may contain numbers (#)
 *
 * All other characters match themselves. The matcher tries all alternatives (backtracking). */
#include "kernels/aiter/aiter_private.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* clang-format off */
static const char *const ck_patterns[] = {
    "moe_ck2stages_gemm1_#x#x#x#_#x#_(TypeCast|MulABScale)(ExpertWeight|)(A8W8blkscale|Shuffled|)(Splitk|)"
    "_v#_Nswizzle#_Quant#_MulRoutedWeight#_(silu|gelu|swiglu)"
    "_(B16|F8|I8|FP4X2)_(B16|F8|I8|FP4X2)_(B16|F16)",
    "moe_ck2stages_gemm2_#x#x#x#_#x#_(TypeCast|MulABScale)(ExpertWeight|)(A8W8blkscale|Shuffled|)"
    "_v#_Nswizzle#_Quant#_MulRoutedWeight#_(B16|F8|I8|FP4X2)_(B16|F8|I8|FP4X2)_(B16|F16)",
};

static const char *const patterns[] = {
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
};

static const char *const host_patterns[] = {
    "aiter_moe_sorting_m#",
    "aiter_quant_x",
    "aiter_quant_h_m#",
    "aiter_zero_moe_buf",
};

/* Starts of the names of AITER's kernels. The names of a newer AITER have them too. */
static const char *const prefixes[] = {
    "moe_ck2stages_gemm1_", "moe_ck2stages_gemm2_", "cktile_", "swiglu_mxfp4_", "flydsl_moe1_",
    "flydsl_moe2_", "flydsl_mxmoe_g1_", "flydsl_mxmoe_g2_", "opus_moe1_", "opus_moe2_",
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

static bool match_any(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (match(list[i], name))
            return true;
    return false;
}

static const char mangled_prefix[] = "_ZN5aiter";

/* True for "_ZN5aiter<length><name>E" with the right length. */
static bool is_mangled(const char *name)
{
    size_t len = 0, n_digits;
    name += strlen(mangled_prefix);
    n_digits = strspn(name, "0123456789");
    for (size_t i = 0; i < n_digits && len < MF_STEP_NAME_MAX; i++)
        len = len * 10 + (size_t)(name[i] - '0');
    name += n_digits;
    return n_digits > 0 && strlen(name) == len + 1 && name[len] == 'E';
}

/* True if the kernel's tile is an instance of its stage in any list of composable kernel. */
static bool has_instance(const struct mf_aiter_lists *l, const char *name)
{
    char kind[16], tile[64], version[16];
    int stage = 0, v = 0;
    const char *at = strstr(name, "_v");
    if (!at || sscanf(at, "_v%9d", &v) != 1 ||
        sscanf(name, "moe_ck2stages_gemm%d_%31[0-9x]_%15[0-9x]", &stage, tile, version) != 3)
        return false;
    mf_format(kind, sizeof(kind), "_gemm%d_", stage);
    mf_format(tile + strlen(tile), sizeof(tile) - strlen(tile), "_%s", version);
    return mf_aiter_lists_have_instance(l, kind, tile, v);
}

static bool is_opus_listed(const struct mf_aiter_lists *l, const char *name)
{
    static const char layout[] = "opus_moe2_layout_";
    char plain[MF_STEP_NAME_MAX];
    mf_format(plain, sizeof(plain), "%s", name);
    if (strncmp(name, layout, strlen(layout)) == 0)
        mf_format(plain, sizeof(plain), "opus_moe2_%s", name + strlen(layout));
    return mf_aiter_lists_have(l, plain);
}

/* True if the name starts like one of AITER's kernels. */
static bool is_plausible(const char *name)
{
    if (strncmp(name, mangled_prefix, strlen(mangled_prefix)) == 0)
        return is_mangled(name);
    for (size_t i = 0; i < MF_ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

enum mf_aiter_known mf_aiter_name_known(const struct mf_aiter_lists *lists, const char *name)
{
    const struct mf_aiter_lists *l = lists ? lists : mf_aiter_lists_builtin();
    bool listed, in_lists = true;
    if (!mf_is_name(name, MF_STEP_NAME_MAX - 1))
        return MF_AITER_NO_KERNEL;
    if (strncmp(name, mangled_prefix, strlen(mangled_prefix)) == 0)
        listed = mf_aiter_lists_have(l, name);
    else if (match_any(ck_patterns, MF_ARRAY_LEN(ck_patterns), name))
        listed = has_instance(l, name);
    else if (strncmp(name, "opus_", 5) == 0)
        listed = is_opus_listed(l, name);
    else {
        listed = match_any(patterns, MF_ARRAY_LEN(patterns), name);
        in_lists = false;
    }
    if (listed)
        return MF_AITER_KNOWN;
    return is_plausible(name) && !(in_lists && l->own) ? MF_AITER_NEWER : MF_AITER_NO_KERNEL;
}

bool mf_aiter_is_step(const char *name)
{
    char plain[MF_STEP_NAME_MAX];
    if (!mf_is_name(name, MF_STEP_NAME_MAX - 1)) /* mf_step_drop_ksplit truncates longer names */
        return false;
    if (match_any(host_patterns, MF_ARRAY_LEN(host_patterns), name))
        return true;
    (void)mf_step_drop_ksplit(name, plain);
    return mf_aiter_name_known(NULL, plain) != MF_AITER_NO_KERNEL;
}
