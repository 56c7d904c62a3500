/* Packing and expert maps on the emulator (kernels/pipeline/fmoe_on_device.h): the bytes are those of the
 * conversion on the host, for every layout and format, warps of 32 and waves of 64 lanes. */
#include <string.h>

#include "common/base/cleanup.h"
#include "emulator/device_emulated.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "kernels/pipeline/fmoe.h"
#include "kernels/pipeline/fmoe_on_device.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"

static const char *const architectures[] = {"sm_89", "gfx942"};
static struct mf_device *device;
static struct mf_on_device kernels;

static void open_arch(int arch)
{
    ck_assert_int_eq(mf_device_emulated_open(architectures[arch], 2, 7, &device), 0);
    ck_assert_int_eq(mf_on_device_open(device, &kernels), 0);
}
static void close_arch(void)
{
    mf_on_device_close(&kernels);
    device = mf_device_close(device);
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *at = aligned_alloc(64, (n + 63) / 64 * 64);

    ck_assert_ptr_nonnull(at);
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(i * 0x9e3779b1u >> 13 ^ i);
    return at;
}

/* Converts all experts on the host, then on the device, and compares the bytes of every part. */
static void compare_pack(const struct mf_shape *s, enum mf_tensor w, const struct mf_layout *l)
{
    const struct mf_tensor_spec row = mf_plain_w(s, w, "row"), to = mf_plain_w(s, w, l->name);
    struct mf_tensor_ref from = {0}, want = {0}, got = {0};
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(&to, s, parts);

    ck_assert_int_gt(n, 0);
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)mf_part_bytes(&parts[i]);
        from.part[i] = random_bytes(bytes);
        want.part[i] = random_bytes(bytes);
        got.part[i] = random_bytes(bytes);
        memset(got.part[i], 0xee, bytes);
        mf_device_emulated_allow(device, from.part[i], bytes, false);
        mf_device_emulated_allow(device, got.part[i], bytes, true);
    }
    for (int32_t e = 0; e < s->expert; e++) {
        struct mf_tensor_ref a = {0}, b = {0};
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)e * (size_t)mf_part_bytes(&parts[i]) / (size_t)s->expert;
            a.part[i] = (uint8_t *)from.part[i] + at;
            b.part[i] = (uint8_t *)want.part[i] + at;
        }
        ck_assert_int_eq(mf_layout_convert_weight(s, &row, &to, &a, &b), 0);
    }
    ck_assert_msg(mf_on_device_pack(&kernels, s, &to, &from, &got, NULL) == 0, "%s",
                  mf_device_emulated_why(device));
    for (int i = 0; i < n; i++) {
        ck_assert_msg(memcmp(got.part[i], want.part[i], (size_t)mf_part_bytes(&parts[i])) == 0,
                      "%s %s: part %d differs", mf_tensor_name(w), l->name, i);
        free(from.part[i]);
        free(want.part[i]);
        free(got.part[i]);
    }
    mf_device_emulated_allow(device, NULL, 0, false);
}

MF_TEST(packs_like_the_host, .rows = CONTRACT_N_FORMATS * 2)
{
    /* 2·192 and 256 rows; per-row scales of four bytes, group scales of odd numbers of bytes */
    const struct contract_case layer = {1, 256, 192, 3, 2, MF_ACT_SILU, false};
    const struct mf_shape s = contract_shape(&layer, &contract_formats[_i / 2]);
    const struct mf_layout *layouts;
    size_t n;
    int compared = 0;

    open_arch(_i % 2);
    layouts = mf_layouts(&n);
    for (size_t i = 0; i < n; i++) {
        for (int w = 0; w < 2; w++) {
            const enum mf_tensor tensor = w == 0 ? MF_TENSOR_W1 : MF_TENSOR_W2;
            const struct mf_tensor_spec to = mf_plain_w(&s, tensor, layouts[i].name);
            const struct mf_codec *c = mf_codec_find(to.format, to.scale);
            size_t N = (size_t)(w == 0 ? 2 * s.inter_dim : s.model_dim),
                   K = (size_t)(w == 0 ? s.model_dim : s.inter_dim);
            if (!mf_layout_legal(&layouts[i], c->bits, N, K) || !mf_layout_supports_scales(&layouts[i], c) ||
                (w == 1 && layouts[i].gate_rows > 0))
                continue;
            compare_pack(&s, tensor, &layouts[i]);
            compared++;
        }
    }
    ck_assert_int_ge(compared, 6);
    close_arch();
}

#define ALL    12
#define TOKENS 301
#define TOPK   3

MF_TEST(remaps_like_the_host, .rows = 4)
{
    static const int32_t expert_map[ALL] = {-1, 2, -1, -1, 0, 4, -1, 1, 3, -1, -1, -1};
    static int32_t ids[TOKENS * TOPK], want[TOKENS * TOPK], got[TOKENS * TOPK];
    static int64_t wide[TOKENS * TOPK], wide_got[TOKENS * TOPK];
    struct mf_shape s = {.token = TOKENS, .topk = TOPK, .expert = 5, .ep_first = 0, .ep_experts = ALL};
    bool is_wide = _i / 2 == 1;
    struct mf_remap r = {expert_map, is_wide ? (const void *)wide : ids, is_wide ? (void *)wide_got : got,
                         is_wide};
    const char *why;

    for (int i = 0; i < TOKENS * TOPK; i++) {
        ids[i] = i % 17 == 3 ? INT32_MIN : i % 16 - 2;
        wide[i] = i % 17 == 3 ? (INT64_C(3) << 32) + 4 : ids[i];
    }
    ck_assert_int_eq(mf_fmoe_remap_ids(&s, expert_map, ids, want, &why), 0);
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        memset(got, 0xee, sizeof(got));
        memset(wide_got, 0xee, sizeof(wide_got));
        if (on_cpu) {
            mf_remap_on_cpu(&s, &r);
        } else {
            open_arch(_i % 2);
            mf_device_emulated_allow(device, expert_map, sizeof(expert_map), false);
            mf_device_emulated_allow(device, r.ids, is_wide ? sizeof(wide) : sizeof(ids), false);
            mf_device_emulated_allow(device, r.to, is_wide ? sizeof(wide) : sizeof(ids), true);
            ck_assert_msg(mf_on_device_remap(&kernels, &s, &r, NULL) == 0, "%s",
                          mf_device_emulated_why(device));
            close_arch();
        }
        for (int i = 0; i < TOKENS * TOPK; i++)
            ck_assert_msg((is_wide ? wide_got[i] : got[i]) == want[i], "route %d, on the CPU %d", i, on_cpu);
    }
}

/* A position that no local expert has is like -1. */
MF_TEST(ignores_wrong_positions)
{
    static const int32_t expert_map[4] = {0, 2, INT32_MIN, INT32_MAX}, ids[4] = {0, 1, 2, 3};
    const struct mf_shape s = {.token = 4, .topk = 1, .expert = 2, .ep_first = 2, .ep_experts = 4};
    int32_t got[4];
    const struct mf_remap r = {expert_map, ids, got, false};

    mf_remap_on_cpu(&s, &r);
    ck_assert(got[0] == 2 && got[1] == -1 && got[2] == -1 && got[3] == -1);
    open_arch(0);
    memset(got, 0, sizeof(got));
    mf_device_emulated_allow(device, expert_map, sizeof(expert_map), false);
    mf_device_emulated_allow(device, ids, sizeof(ids), false);
    mf_device_emulated_allow(device, got, sizeof(got), true);
    ck_assert_int_eq(mf_on_device_remap(&kernels, &s, &r, NULL), 0);
    ck_assert(got[0] == 2 && got[1] == -1 && got[2] == -1 && got[3] == -1);
    close_arch();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
