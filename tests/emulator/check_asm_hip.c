/* Prebuilt GPU kernels. Kernels that the script builds with NVRTC are enumerated. The same source, built as
 * emulator objects with a manifest, satisfies the family contract. Unsuitable kernels are rejected with a
 * reason. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "emulator/device_emulated.h"
#include "kernels/core/code.h"
#include "kernels/families/family_asm.h"
#include "support/farm/offer_recorder.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/text_file.h"

#define SEED 31

static char folder[64];

static void make_folder(void)
{
    mf_format(folder, sizeof(folder), "/tmp/check_asm_hip.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv(MF_ASM_FOLDER_ENV, folder, 1), 0);
}

static void remove_folder(void)
{
    remove_tree(folder);
}

/* ---- enumeration and rejection ---- */

static void ask(const char *gfx, const struct mf_shape *s, struct offer_recorder *h)
{
    struct mf_device_info info = {.class = {.cu_num = 132}, .cores = 132};

    mf_format(info.class.gfx, sizeof(info.class.gfx), "%s", gfx);
    *h = (struct offer_recorder){.offer = RECORDING_OFFER};
    ck_assert_int_eq(mf_enumerate(&info, s, "asm", &h->offer), 0);
}

static const struct contract_format bf16 = {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "asm"};
/* In the first case the last K tile is half full. Some experts have no tokens, others several blocks. */
static const struct contract_case cases[] = {{6, 288, 128, 8, 2, MF_ACT_SILU, false},
                                             {40, 128, 64, 3, 2, MF_ACT_GELU, true}};

static void write_manifest(const char *gfx, const char *name, const char *text)
{
    char path[PATH_MAX];

    mf_format(path, sizeof(path), "%s/%s", folder, gfx);
    (void)mkdir(path, 0700);
    mf_format(path, sizeof(path), "%s/%s/fmoe_2stages", folder, gfx);
    (void)mkdir(path, 0700);
    mf_format(path, sizeof(path), "%s/%s/fmoe_2stages/%s.csv", folder, gfx, name);
    text_file_write(path, text);
}

#define HEADER "tile_m,tile_n,knl_name,co_name\n"

MF_TEST(test_rejections)
{
    struct mf_shape s = contract_shape(&cases[0], &bf16);
    static struct offer_recorder h;

    make_folder();
    ask("sm_90", &s, &h);
    ck_assert_str_eq(h.rule, "folder");
    ck_assert_msg(strstr(h.reason, "no manifest below sm_90/ in fmoe"), "%s", h.reason);
    write_manifest("sm_90", "fmoe_stage1_bf16_noquantBf16_g1u1",
                   HEADER "16,96,too_wide,a.co\n16,64,fits,a.co\n");
    write_manifest("gfx942", "fmoe_stage1_bf16_noquantBf16_g1u1",
                   HEADER "16,64,ours,a.co\n32,64,_ZN5aiter10fmoe_32x64E,b.co\n");
    write_manifest("cpu", "fmoe_stage1_bf16_noquantBf16_g1u1", HEADER "16,64,of_a_cpu,a.co\n");
    ask("sm_90", &s, &h);
    ck_assert_uint_eq(h.n, 1);
    ck_assert_str_eq(h.steps[0].name, "fits");
    ck_assert_str_eq(h.rule, "divisibility");
    ask("sm_80", &s, &h);
    ck_assert_uint_eq(h.n, 0);
    ask("gfx942", &s, &h);
    ck_assert_uint_eq(h.n, 1);
    ck_assert_str_eq(h.steps[0].name, "ours");
    ck_assert_str_eq(h.rule, "layout");
    ck_assert_msg(strstr(h.reason, "the kernel is AITER's own: its arguments are weights in 16 x 16 tiles"),
                  "%s", h.reason);
    ask("gfx950", &s, &h);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_str_eq(h.rule, "folder");
    s.has_b1 = true;
    ask("sm_90", &s, &h);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_str_eq(h.rule, "form");
    remove_folder();
}

/* ---- on the emulator ---- */

static const struct contract_guard guard = {mf_device_emulated_allow, mf_device_emulated_why};

static const char *const archs[] = {"sm_89", "gfx942"};

static void add_kernel(struct mf_device *d, int m, int n, bool weight, char *manifest, size_t cap)
{
    struct mf_code code = {.source = "asm_stage1.hip"};
    char paths[1][PATH_MAX], whys[1][MF_CODE_WHY_MAX], to[PATH_MAX];
    size_t len = strlen(manifest);

    mf_code_define(&code, "MF_NAME=stage1_%dx%d", m, n);
    mf_code_define(&code, "MF_SUB_M=%d", m);
    mf_code_define(&code, "MF_SUB_N=%d", n);
    mf_code_define(&code, "MF_WEIGHT=%d", weight);
    ck_assert_msg(d->ops->compile(d, &code, 1, paths, whys) == 1, "%s", whys[0]);
    mf_format(to, sizeof(to), "%s/%s/fmoe_2stages/%dx%d.co", folder, d->info.class.gfx, m, n);
    ck_assert_int_eq(symlink(paths[0], to), 0);
    mf_format(manifest + len, cap - len, "%d,%d,stage1_%dx%d,%dx%d.co\n", m, n, m, n, m, n);
}

MF_TEST(test_contract, .rows = MF_ARRAY_LEN(cases) * MF_ARRAY_LEN(archs))
{
    const char *const families[] = {"asm"}, *arch = archs[(size_t)_i % MF_ARRAY_LEN(archs)];
    const struct contract_case *c = &cases[(size_t)_i / MF_ARRAY_LEN(archs)];
    struct mf_shape s = contract_shape(c, &bf16);
    char manifest[256] = HEADER;
    struct contract_run run = {
        .families = families, .n_families = 1, .shape = &s, .most = INT_MAX, .guard = &guard};

    s.has_b1 = s.has_b2 = false; /* the kernel's argument block has no biases */
    make_folder();
    write_manifest(arch, c->doweight ? "noquantBf16_doweight" : "noquantBf16", HEADER);
    ck_assert_int_eq(mf_device_emulated_open(arch, 3, SEED, &run.device), 0);
    add_kernel(run.device, 16, 64, c->doweight, manifest, sizeof(manifest));
    add_kernel(run.device, 32, 64, c->doweight, manifest, sizeof(manifest));
    write_manifest(arch, c->doweight ? "noquantBf16_doweight" : "noquantBf16", manifest);
    ck_assert_int_eq(contract_check_some(&run), 2);
    (void)mf_device_close(run.device);
    remove_folder();
}

/* ---- built by the script ---- */

static const struct mf_test_group optional_tests = {.optional = true};

static const struct {
    const char *vendor, *arch, *needs;
} builds[] = {{"nvidia", "sm_90", "NVRTC is missing (NVIDIA's CUDA toolkit)"},
              {"amd", "gfx90a", "hipRTC is missing (Debian: libamdhip64-dev)"}};

/* Each manifest row that the script writes is enumerated and names a code object. */
MF_TEST(test_build_script, .group = &optional_tests, .rows = MF_ARRAY_LEN(builds))
{
    static const char *const names[] = {"mf_stage1_bf16_16x64", "mf_stage1_bf16_32x64",
                                        "mf_stage1_bf16_64x64", "mf_stage1_bf16_64x128"};
    const char *arch = builds[_i].arch;
    char version[64], why[MF_CODE_WHY_MAX];
    const char *script[] = {MF_SOURCE_DIR "/scripts/build_asm.sh", NULL}, *to[] = {folder, arch, NULL};
    static struct offer_recorder h;

    if (mf_code_version(builds[_i].vendor, version, why, sizeof(why)) < 0) {
        mf_check_skip("%s: %s", builds[_i].needs, why);
        return;
    }
    make_folder();
    ck_assert_int_eq(setenv("MOEFARM_COMPILE", MF_BINARY_DIR "/kernels/moefarm-compile", 1), 0);
    struct ran r = run_program(script, to);
    ck_assert_msg(r.code == 0, "%s", r.text);
    for (int weight = 0; weight < 2; weight++) {
        struct mf_shape s = contract_shape(&cases[0], &bf16);
        s.doweight_stage1 = weight;
        ask(arch, &s, &h);
        ck_assert_uint_eq(h.n, MF_ARRAY_LEN(names));
        for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
            char name[64], path[PATH_MAX], head[4];
            mf_format(name, sizeof(name), "%s%s", names[i], weight ? "_w" : "");
            ck_assert_ptr_nonnull(find_recorded(&h, name));
            mf_format(path, sizeof(path), "%s/%s/fmoe_2stages/%s.co", folder, arch, name);
            _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
            ck_assert_ptr_nonnull(f);
            ck_assert_uint_eq(fread(head, 1, sizeof(head), f), sizeof(head));
            ck_assert_int_eq(memcmp(head, "\177ELF", sizeof(head)), 0);
        }
    }
    remove_folder();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
