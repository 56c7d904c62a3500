/* Tests kernels from outside the build through a farm. A family in a shared object and prebuilt kernels with
 * manifests win rows. Defective shared objects and kernels are reported and do not affect other kernels. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "kernels/families/family_asm.h"
#include "kernels/families/family_plugin.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/text_file.h"
#include "worker/agent/runner_pool.h"

#define OBJECT(name) MF_BINARY_DIR "/tests/" name ".so"
#define WORKER       MF_BINARY_DIR "/worker/moefarm-worker"

static struct farm farm;
static char folder[64];

static void stop_farm(void)
{
    farm_stop(&farm);
}

/* Starts a runner pool with the given worker options. argv is static and must live as long as the pool, so
 * use one pool at a time. */
static struct mf_runner_pool *runner_pool_of(const char *const options[])
{
    static const char *argv[12] = {WORKER, "--runner-child", "--no-sandbox", "--device", "cpu:0"};
    const struct mf_runner_pool_options o = {.argv = argv};
    struct mf_runner_pool *c = NULL;
    int n = 5;
    while (*options)
        argv[n++] = *options++;
    argv[n] = NULL;
    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    return c;
}

static enum mf_runner_pool_event wait_for(struct mf_runner_pool *c)
{
    enum mf_runner_pool_event event = MF_RUNNER_POOL_NOTHING;
    for (int64_t until = mf_now_ms() + FARM_DEADLINE_MS; event == MF_RUNNER_POOL_NOTHING;) {
        cJSON *none = NULL;
        ck_assert_int_lt(mf_now_ms(), until);
        event = mf_runner_pool_iterate(c, &none, until);
    }
    return event;
}

/* Returns the revision of a family of a runner with these options; "": it does not offer the family. */
static void revision_of(const char *const options[], const char *family, char buf[MF_REVISION_MAX])
{
    const char *revision = "";
    struct mf_runner_pool *c = runner_pool_of(options);
    ck_assert_int_eq(wait_for(c), MF_RUNNER_POOL_READY);
    (void)mf_json_text(mf_json_object(mf_runner_pool_hello(c), "families"), family, &revision);
    mf_format(buf, MF_REVISION_MAX, "%s", revision);
    mf_runner_pool_free(c);
}

static int tune(const char *families, const char *option, const char *value)
{
    farm_start(&farm, 1000);
    const char *const args[] = {"--device", "cpu:0", "--families", families, option, value, NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, "");
    return batch;
}

static void check_ok(int batch, const char *query, const char *name)
{
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, query);
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(steps, "items")) {
        if (strcmp(farm_text(item, "name"), name) != 0)
            continue;
        ck_assert_msg(strcmp(farm_text(item, "status"), "ok") == 0, "%s: %s", name,
                      farm_text(item, "reason"));
        ck_assert_int_eq(farm_number(item, "verified"), 2); /* passed all gates */
        return;
    }
    ck_abort_msg("no step is named %s", name);
}

static void check_rejection(int batch, const char *sentence)
{
    _cleanup_(cJSON_Deletep) cJSON *why = farm_task_list(&farm, batch, "rejections");
    _cleanup_(mf_freep) char *text = cJSON_PrintUnformatted(why);
    ck_assert_msg(strstr(text, sentence) != NULL, "no rejection '%s' in: %s", sentence, text);
}

MF_TEST(tunes_a_shared_object)
{
    int batch = tune("move,plain", "--family-so", OBJECT("plain"));
    check_ok(batch, "steps?family=plain", "plain_layer");
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_msg(strstr(table, ",plain:plain_layer,") != NULL, "%s", table);
    struct mf_family_plugins p = {0};
    char why[MF_REASON_MAX] = "", of_file[MF_REVISION_MAX];
    ck_assert_msg(mf_family_plugin_load(&p, OBJECT("plain"), why, sizeof(why)) == 0, "%s", why);
    mf_kernel_revision_with(p.hashes[0], of_file);
    ck_assert_str_ne(of_file, mf_kernel_revision());
    ck_assert_msg(strstr(table, of_file) != NULL, "the table does not contain revision %s: %s", of_file,
                  table);
    ck_assert_int_eq(mf_family_plugin_load(&p, OBJECT("plain"), why, sizeof(why)), -EEXIST);
    mf_family_plugins_release(&p);
    const char *const options[] = {"--families", "move,plain", "--family-so", OBJECT("plain"), NULL};
    char revision[MF_REVISION_MAX];
    revision_of(options, "plain", revision);
    ck_assert_str_eq(revision, of_file);
}

static const struct mf_test_group offers_tests = {};

#define BUILD "this build's revision"
/* clang-format off */
/* A family's revision depends on the files that it reads, and on nothing else. `lib` is the old name of
 * family onednn. */
static const struct {
    const char *options[3], *family, *revision; /* revision NULL: another one than the row before */
} revisions[] = {
    {{NULL},                          "move",      BUILD},
    {{NULL},                          "two_stage", BUILD},
    {{NULL},                          "asm",       BUILD},
    {{"--families", "move"},          "move",      BUILD},
    {{"--families", "move"},          "two_stage", ""},
    {{"--families", "lib,move"},      "onednn",    BUILD},
    {{"--family-so", OBJECT("plain")}, "move",     BUILD},
    {{"--family-so", OBJECT("plain")}, "plain",    NULL},
};
/* clang-format on */

MF_TEST(revisions_are_of_families, .group = &offers_tests)
{
    char before[MF_REVISION_MAX] = "", revision[MF_REVISION_MAX];
    for (size_t i = 0; i < MF_ARRAY_LEN(revisions); i++) {
        const char *want = revisions[i].revision;
        revision_of(revisions[i].options, revisions[i].family, revision);
        if (want)
            ck_assert_str_eq(revision, strcmp(want, BUILD) == 0 ? mf_kernel_revision() : want);
        else
            ck_assert(revision[0] && strcmp(revision, before) != 0);
        memcpy(before, revision, sizeof(before));
    }
}

/* A mistyped family name is an error, because otherwise the worker would silently offer nothing. */
MF_TEST(refuses_an_unknown_family, .group = &offers_tests)
{
    const char *const options[] = {"--families", "move,titel", NULL};
    struct mf_runner_pool *c = runner_pool_of(options);
    ck_assert_int_eq(wait_for(c), MF_RUNNER_POOL_FAILED);
    ck_assert_msg(strstr(mf_runner_pool_why(c), "--families: unknown family titel; this device has move, ") !=
                      NULL,
                  "%s", mf_runner_pool_why(c));
    mf_runner_pool_free(c);
}

/* clang-format off */
static const struct {
    const char *file, *message;
} broken_objects[] = {
    {OBJECT("odd0"), "the shared object does not export mf_family_entry"},
    {OBJECT("odd1"), "built for family API version 999"},
    {OBJECT("odd2"), "this build already has a family move"},
    {OBJECT("odd3"), "enumerate crashed with signal 11"},
    {OBJECT("odd4"), "enumerate ended the process with exit code 7"},
    {OBJECT("odd5"), "enumerate returned -5 (Input/output error)"},
    {OBJECT("odd6"), "family odd supports devices of kind hip"},
    {OBJECT("odd7"), "loading crashed with signal 11"},
    {"/nowhere/at-all.so", "cannot open shared object file"},
};
/* clang-format on */

MF_TEST(reports_a_broken_object, .rows = MF_ARRAY_LEN(broken_objects))
{
    int batch = tune("move,one,odd", "--family-so", broken_objects[_i].file);
    check_rejection(batch, broken_objects[_i].message);
    /* the other families are not affected */
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=one&status=ok");
    ck_assert_int_ge(cJSON_GetArraySize(mf_json_array(steps, "items")), 1);
}

/* ---- prebuilt kernels ---- */

static void make_folder(const char *path)
{
    ck_assert_msg(mkdir(path, 0700) == 0, "cannot make the folder %s", path);
}

static const char *in_folder(const char *name)
{
    static char path[256];
    mf_format(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    text_file_write(in_folder(name), text);
}

/* Copies the object, because runners do not follow links that lead out of the folder. */
static void copy_object(const char *name)
{
    static char bytes[4 << 20];
    FILE *from = fopen(OBJECT("asm_kernels"), "re"), *to = fopen(in_folder(name), "we");
    ck_assert(from && to);
    size_t n = fread(bytes, 1, sizeof(bytes), from);
    ck_assert_uint_lt(n, sizeof(bytes));
    ck_assert_uint_eq(fwrite(bytes, 1, n, to), n);
    (void)fclose(from);
    ck_assert_int_eq(fclose(to), 0);
}

#define ONE_CSV    "cpu/fmoe/silu/fmoe_bf16_noquantBf16_g1u1_silu.csv"
#define STAGE1_CSV "cpu/fmoe_2stages/fmoe_stage1_bf16_noquantBf16_g1u1.csv"

static void make_kernels(void)
{
    static const char *const folders[] = {"cpu", "cpu/fmoe", "cpu/fmoe/silu", "cpu/fmoe_2stages"};
    mf_format(folder, sizeof(folder), "/tmp/check_outside.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < MF_ARRAY_LEN(folders); i++)
        make_folder(in_folder(folders[i]));
    write_text(ONE_CSV, "// one stage\nknl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n\n"
                        "fmoe_test_one_silu_16x32,kernels.so,1,0,0,1,0,16,32\n"
                        "fmoe_test_too_wide,kernels.so,1,0,0,1,0,16,48\n"
                        "fmoe_test_broken,kernels.so,1,0,0,1,0,16,x\n");
    write_text(STAGE1_CSV, "tile_m,tile_n,knl_name,co_name\n16,32,fmoe_test_stage1_16x32,kernels.so\n");
    copy_object("cpu/fmoe/silu/kernels.so");
    copy_object("cpu/fmoe_2stages/kernels.so");
}

static void remove_kernels(void)
{
    static const char *const names[] = {"cpu/fmoe/silu/kernels.so",
                                        "cpu/fmoe_2stages/kernels.so",
                                        ONE_CSV,
                                        STAGE1_CSV,
                                        "cpu/fmoe/silu",
                                        "cpu/fmoe",
                                        "cpu/fmoe_2stages",
                                        "cpu",
                                        ""};
    farm_stop(&farm);
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++)
        (void)remove(in_folder(names[i]));
}

static const struct mf_test_group prebuilt_tests = {
    .timeout_s = 120, .setup = make_kernels, .teardown = remove_kernels};

MF_TEST(tunes_prebuilt_kernels, .group = &prebuilt_tests)
{
    int batch = tune("move,asm", "--asm-dir", folder);
    check_ok(batch, "steps?family=asm", "fmoe_test_one_silu_16x32");
    check_ok(batch, "steps?family=asm", "fmoe_test_stage1_16x32");
    check_rejection(batch, "inter_dim 32 is not a multiple of the tile width 48 (remainder 32)");
    check_rejection(batch, "fmoe_bf16_noquantBf16_g1u1_silu.csv:5: fmoe_test_broken: column subGU_n");
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_msg(strstr(table, "asm:asm_zero_y") && strstr(table, "asm:fmoe_test_one_silu_16x32"), "%s",
                  table);
}

/* A changed manifest changes the revision. */
MF_TEST(hashes_manifests, .group = &prebuilt_tests)
{
    uint64_t before = mf_asm_hash(folder);
    ck_assert_uint_ne(before, 0);
    ck_assert_uint_eq(mf_asm_hash(folder), before);
    write_text(STAGE1_CSV, "tile_m,tile_n,knl_name,co_name\n32,32,fmoe_test_stage1_16x32,kernels.so\n");
    ck_assert_uint_ne(mf_asm_hash(folder), before);
    ck_assert_uint_eq(mf_asm_hash(NULL), 0);
    ck_assert_uint_eq(mf_asm_hash("/nowhere"), 0);
}

MF_TEST(reports_missing_manifests)
{
    int batch = tune("move,one,asm", "--asm-dir", "/nowhere");
    check_rejection(batch, "/nowhere has no manifest below ");
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop_farm});
}
