/* kernels/sim*.c: invalid device names and specs, reproducible samples, and the enumerated steps, which form
 * a pipeline for every format of the shipped tables. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "common/moe/pipeline_search.h"
#include "common/table/table_file.h"
#include "kernels/sim/sim.h"
#include "kernels/sim/sim_spec.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct {
    const char *name;
    bool good;
} names[] = {
    {"sim:gfx942/304:0", true},    {"sim:cpu-znver4/2:17", true}, {"sim:gfx950/256:99999", true},
    {"sim", false},                {"sim:", false},               {"sim:gfx942/304", false},
    {"sim:gfx942:0", false},       {"sim:gfx942/0:0", false},     {"sim:gfx942/304:", false},
    {"sim:gfx942/304:-1", false},  {"sim:gfx942/304:100000", false}, {"sim:gfx942/304:0:/nonexistent/spec",
     false},
    {"cpu:0", false},
};

static const struct {
    const char *text, *says;    /* says NULL: valid */
} specs[] = {
    {"{}", NULL},
    {"{\"step_ms\":50,\"faults\":[]}", NULL},
    {"{\"faults\":[{\"match\":\"*\",\"fault\":\"crash\",\"first\":2}]}", NULL},
    {"{\"times\":[{\"match\":\"a*\",\"factor\":0.9}]}", NULL},
    {"{\"times\":[{\"match\":\"a\"}]}", "times[0].factor"},
    {"{\"times\":[{\"match\":\"a\",\"factor\":0}]}", "times[0].factor"},
    {"{\"times\":[{\"factor\":2}]}", "times[0].match"},
    {"{\"disturbances\":[{\"part\":\"rerun\",\"token\":16,\"factor\":2.4,\"first\":1}]}", NULL},
    {"{\"disturbances\":[{\"part\":\"night\",\"factor\":2}]}", "disturbances[0].part"},
    {"{\"disturbances\":[{\"part\":\"unit\"}]}", "disturbances[0].factor"},
    {"{\"disturbances\":[{\"part\":\"unit\",\"factor\":2,\"token\":0}]}", "disturbances[0].token"},
    {"", "not a JSON object"},
    {"[]", "not a JSON object"},
    {"{\"step_ms\":-1}", "step_ms: expected"},
    {"{\"step_ms\":\"fast\"}", "step_ms: expected"},
    {"{\"pipeline_ms\":-1}", "pipeline_ms: expected"},
    {"{\"faults\":[{}]}", "faults[0].match"},
    {"{\"faults\":[{\"match\":\"a\",\"fault\":\"crash\"},{\"match\":\"a\",\"fault\":\"melt\"}]}",
     "faults[1].fault"},
    {"{\"faults\":[{\"match\":\"a\",\"fault\":\"crash\",\"first\":0}]}", "faults[0].first"},
};
/* clang-format on */

MF_TEST(device_names, .rows = MF_ARRAY_LEN(names))
{
    struct mf_device *d = NULL;
    char why[256] = "";
    int r = mf_device_open(names[_i].name, why, sizeof(why), &d);
    if (strncmp(names[_i].name, "sim", 3) != 0)
        r = mf_sim_open(names[_i].name, why, sizeof(why), &d);
    ck_assert_msg((r == 0) == names[_i].good, "%s: %s", names[_i].name, why);
    ck_assert(r == 0 || why[0] != '\0');
    mf_device_close(d);
}

static void write_spec(char *path, const char *text)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

MF_TEST(spec_files, .rows = MF_ARRAY_LEN(specs))
{
    char path[] = "/tmp/check_sim.XXXXXX", why[256] = "";
    struct mf_sim_spec s = {0};
    write_spec(path, specs[_i].text);
    int r = mf_sim_spec_load(path, &s, why, sizeof(why));
    (void)unlink(path);
    if (specs[_i].says)
        ck_assert_msg(r < 0 && strstr(why, specs[_i].says), "%d %s", r, why);
    else
        ck_assert_msg(r == 0, "%s", why);
    mf_sim_spec_release(&s);
}

MF_TEST(spec_times)
{
    char path[] = "/tmp/check_sim.XXXXXX", why[256];
    struct mf_sim_spec s = {0};
    write_spec(path, "{\"times\":[{\"match\":\"a*\",\"factor\":0.5},{\"match\":\"*b\",\"factor\":3}]}");
    ck_assert_int_eq(mf_sim_spec_load(path, &s, why, sizeof(why)), 0);
    ck_assert_double_eq(mf_sim_spec_factor(&s, "ac"), 0.5);
    ck_assert_double_eq(mf_sim_spec_factor(&s, "ab"), 1.5);
    ck_assert_double_eq(mf_sim_spec_factor(&s, "c"), 1);
    mf_sim_spec_release(&s);
    (void)unlink(path);
}

MF_TEST(spec_disturbances)
{
    char path[] = "/tmp/check_sim.XXXXXX", why[256];
    struct mf_sim_spec s = {0};
    write_spec(path, "{\"disturbances\":[{\"part\":\"rerun\",\"token\":16,\"factor\":3,\"first\":1},"
                     "{\"part\":\"rerun\",\"factor\":2}]}");
    ck_assert_int_eq(mf_sim_spec_load(path, &s, why, sizeof(why)), 0);
    ck_assert_double_eq(mf_sim_spec_disturb(&s, MF_SIM_PART_UNIT, 16), 1);
    ck_assert_double_eq(mf_sim_spec_disturb(&s, MF_SIM_PART_RERUN, 8), 2);
    ck_assert_double_eq(mf_sim_spec_disturb(&s, MF_SIM_PART_RERUN, 16), 3);
    ck_assert_double_eq(mf_sim_spec_disturb(&s, MF_SIM_PART_RERUN, 16), 2);
    char hits[64];
    (void)snprintf(hits, sizeof(hits), "%s.hits.0", path);
    ck_assert_int_eq(unlink(hits), 0);
    mf_sim_spec_release(&s);
    (void)unlink(path);
}

/* The first matching rule that has hits left applies. All processes that load the spec share the hits. */
MF_TEST(spec_hits)
{
    char path[] = "/tmp/check_sim.XXXXXX", why[256] = "", hits[64];
    struct mf_sim_spec one = {0}, other = {0};
    write_spec(path, "{\"faults\":[{\"match\":\"a*\",\"fault\":\"crash\",\"first\":3},{\"match\":\"*\","
                     "\"fault\":\"slow\"}]}");
    ck_assert_int_eq(mf_sim_spec_load(path, &one, why, sizeof(why)), 0);
    ck_assert_int_eq(mf_sim_spec_load(path, &other, why, sizeof(why)), 0);
    ck_assert_int_eq(mf_sim_spec_hit(&one, "b"), MF_SIM_FAULT_SLOW);
    ck_assert_int_eq(mf_sim_spec_hit(&one, "ab"), MF_SIM_FAULT_CRASH);
    ck_assert_int_eq(mf_sim_spec_hit(&other, "a"), MF_SIM_FAULT_CRASH);
    ck_assert_int_eq(mf_sim_spec_hit(&one, "a"), MF_SIM_FAULT_CRASH);
    ck_assert_int_eq(mf_sim_spec_hit(&other, "a"), MF_SIM_FAULT_SLOW);
    (void)snprintf(hits, sizeof(hits), "%s.hits.0", path);
    (void)unlink(hits);
    (void)unlink(path);
    mf_sim_spec_release(&one);
    mf_sim_spec_release(&other);
}

MF_TEST(noise)
{
    const struct mf_shape shape = {
        .token = 64, .model_dim = 4096, .inter_dim = 1536, .expert = 128, .topk = 8};
    enum { N = 20000 };
    static double samples[N];
    int outliers = 0;
    for (int i = 0; i < N; i++) {
        samples[i] = mf_sim_sample_us(100, mf_sim_noise(7, &shape, "step"), i);
        if (samples[i] != mf_sim_sample_us(100, mf_sim_noise(7, &shape, "step"), i))
            ck_abort_msg("sample %d is not reproducible", i);
        outliers += samples[i] > 112;
    }
    ck_assert(samples[0] != mf_sim_sample_us(100, mf_sim_noise(8, &shape, "step"), 0));
    ck_assert(samples[0] != mf_sim_sample_us(100, mf_sim_noise(7, &shape, "stop"), 0));
    /* 1 % of the samples are outliers. The other samples have a standard deviation of 2 %, so their MAD is
     * 0.6745 times 2 %. */
    ck_assert_int_gt(outliers, N / 200);
    ck_assert_int_lt(outliers, N / 60);
    ck_assert_double_eq_tol(mf_median(samples, N), 100, 0.2);
    ck_assert_double_eq_tol(mf_mad(samples, N), 1.35, 0.15);
}

/* ---- enumeration ---- */

struct gathered {
    struct mf_offer offer;
    struct mf_step steps[2048];
    struct mf_path_step timed[2048];
    size_t n, n_rejections;
};

static int gather_step(struct mf_offer *o, const struct mf_step *step)
{
    struct gathered *g = (struct gathered *)o;
    ck_assert_uint_lt(g->n, MF_ARRAY_LEN(g->steps));
    /* no ck_assert for each pair, because each ck_assert writes to a file */
    for (size_t i = 0; i < g->n; i++) {
        if (strcmp(g->steps[i].name, step->name) == 0)
            ck_abort_msg("step name %s occurs twice", step->name);
    }
    g->steps[g->n++] = *step;
    return 0;
}

static int gather_reject(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                         const char *format, ...)
{
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    ck_assert_str_eq(family, "sim");
    ck_assert(kernel[0] && rule[0]);
    ck_assert_msg(strlen(reason) > 20, "'%s' is too short for a reason", reason);
    ((struct gathered *)o)->n_rejections++;
    return 0;
}

/* Returns true if no shape with this format was searched for a pipeline before. One search per format
 * suffices, because a search is slow. */
static bool is_new_format(const struct mf_shape *shape)
{
    static struct mf_shape seen[64];
    static size_t n;
    for (size_t i = 0; i < n; i++) {
        if (seen[i].q_dtype_a == shape->q_dtype_a && seen[i].q_dtype_w == shape->q_dtype_w &&
            seen[i].q_type == shape->q_type && seen[i].use_g1u1 == shape->use_g1u1 &&
            seen[i].doweight_stage1 == shape->doweight_stage1)
            return false;
    }
    ck_assert_uint_lt(n, MF_ARRAY_LEN(seen));
    seen[n++] = *shape;
    return true;
}

static void check_shape(const struct mf_device *d, const struct mf_shape *shape)
{
    static struct gathered g;
    char text[MF_SHAPE_TEXT_MAX];
    g = (struct gathered){.offer = {.step = gather_step, .reject = gather_reject}};
    mf_shape_print(shape, text);
    ck_assert_int_eq(mf_enumerate(&d->info, shape, NULL, &g.offer), 0);
    for (size_t i = 0; i < g.n; i++) {
        double us = mf_sim_step_us(&d->info, shape, &g.steps[i]);
        if (!isfinite(us) || us <= 1)
            ck_abort_msg("%s: %s: %f us", text, g.steps[i].name, us);
        /* moefarmd refuses times that exceed the device's own peak */
        double gflops = g.steps[i].flops / us * 1e-3;
        ck_assert_msg(gflops <= fmax(d->info.peak_gflops_bf16, d->info.peak_gflops_fp8), "%s: %s: %g GFLOP/s",
                      text, g.steps[i].name, gflops);
        g.timed[i] = (struct mf_path_step){.step = &g.steps[i], .us = us};
    }
    if (!is_new_format(shape))
        return;
    struct mf_path_problem p = {.ops = mf_layer_ops(shape),
                                .format = MF_FORMAT_BF16,
                                .steps = g.timed,
                                .n_steps = g.n,
                                .gap_us = 1,
                                .keep = 1};
    struct mf_path *paths = NULL;
    size_t n_paths = 0;
    ck_assert_int_eq(mf_path_find(&p, &paths, &n_paths), 0);
    free(paths);
    ck_assert_msg(n_paths > 0, "%s: no pipeline of %zu steps", text, g.n);
}

MF_TEST(every_shipped_format_has_a_pipeline)
{
    struct mf_device *d = NULL;
    char why[MF_REASON_MAX] = "";
    int n_tables = 0, n_shapes = 0;
    ck_assert_int_eq(mf_sim_open("sim:gfx950/256:0", why, sizeof(why), &d), 0);
    DIR *dir = opendir(MF_TEST_DATA "/aiter");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[512];
        struct mf_table *table = NULL;
        if (!strstr(e->d_name, ".csv"))
            continue;
        (void)snprintf(path, sizeof(path), MF_TEST_DATA "/aiter/%s", e->d_name);
        ck_assert_msg(mf_table_file_read(path, &table, why) == 0, "%s", why);
        n_tables++;
        /* the first and last token count of each layer model; the token counts in between are similar */
        for (size_t i = 0; i < table->n_rows; i++) {
            const struct mf_shape *s = &table->rows[i].shape;
            bool first = i == 0 || !mf_shape_same_layer_model(s, &table->rows[i - 1].shape);
            bool last = i + 1 == table->n_rows || !mf_shape_same_layer_model(s, &table->rows[i + 1].shape);
            if (!first && !last)
                continue;
            check_shape(d, s);
            n_shapes++;
        }
        mf_table_free(table);
    }
    (void)closedir(dir);
    mf_device_close(d);
    ck_assert_int_eq(n_tables, 51);
    ck_assert_int_gt(n_shapes, 100);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 110});
}
