/* Sessions: kept data, early drop by time, limits, errors, races of pipelines. */
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/quant.h"
#include "measure/race/entrant.h"
#include "measure/race/measure.h"
#include "measure/race/rotate.h"
#include "measure/session/region.h"
#include "measure/session/session_data.h"
#include "support/kernels/planted_session.h"

#include "support/kernels/test_memfd_store.h"
#include "support/mf_check.h"

/* ---- helpers ---- */

static const struct mf_unit_options defaults = {.err_ratio = 0.1, .seed = 1, .time_cap_ms = 10000};

static double slowest(const struct planted_sink *sink)
{
    double most = 0;

    for (size_t i = 0; i < MF_MIN(sink->results[0].n_samples, MF_ARRAY_LEN(sink->samples)); i++)
        most = fmax(most, sink->samples[i]);
    return most;
}

/* ---- buffers ---- */

/* Pointers to outputs stay valid while more outputs are made. */
MF_TEST(output_pointers_stay_valid)
{
    enum { N = 100 };
    struct mf_shape s = planted_shape(0, 3);
    planted_session_start(&s, &defaults, NULL);
    struct mf_guarded *out[N][2], *again[2];
    struct mf_tensor_spec a = {.tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted"};
    void *between[N];
    for (int i = 0; i < N; i++) {
        a.block = i + 1;
        ck_assert_int_eq(mf_session_output(test_session, &a, out[i]), 0);
        between[i] = malloc(4096); /* prevents a list from growing in place */
        ck_assert_ptr_nonnull(between[i]);
    }
    for (int i = 0; i < N; i++) {
        a.block = i + 1;
        ck_assert_int_eq(mf_session_output(test_session, &a, again), 0);
        ck_assert_ptr_eq(again[0], out[i][0]);
        ck_assert_ptr_eq(again[1], out[i][1]);
        free(between[i]);
    }
}

/* ---- overwritten data ---- */

/* Overwrites memory as a hostile step could: write protection can be removed in the same process. */
static void overwrite(struct mf_region *r)
{
    ck_assert_int_eq(mprotect(r->at, r->bytes, PROT_READ | PROT_WRITE), 0);
    memset(r->at, 0x5a, r->bytes);
}

/* A file of inputs cannot be mapped for writing, not even by another descriptor. */
MF_TEST(inputs_are_sealed)
{
    struct mf_shape s = planted_shape(0, 64);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    ck_assert_int_eq(planted_probe(&step).status, MF_STATUS_OK);
    ck_assert_uint_ge(test_session->n_inputs, 2);
    for (size_t i = 0; i < test_session->n_inputs + 2; i++) {
        const struct mf_region *r = i == 0   ? &test_session->x_region
                                    : i == 1 ? &test_session->topk_region
                                             : &test_session->inputs[i - 2].buffer.region;
        char path[48];
        mf_format(path, sizeof(path), "/proc/self/fd/%d", r->fd);
        _cleanup_(mf_closep) int fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        ck_assert_ptr_eq(mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        ck_assert_int_eq(pwrite(fd, "x", 1, 0), -1);
        ck_assert_int_eq(ftruncate(fd, 0), -1);
        ck_assert_ptr_ne(mmap(NULL, r->bytes, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
    }
}

/* A step that fails is run again on fresh data on every device, also on the CPU. */
MF_TEST(failed_step_runs_on_fresh_inputs)
{
    struct mf_shape s = planted_shape(0, 64);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    ck_assert_int_eq(planted_probe(&step).status, MF_STATUS_OK);
    for (size_t i = 0; i < test_session->n_inputs; i++) {
        /* the kernel would follow wrong indices */
        if (test_session->inputs[i].buffer.tensor_spec.format != MF_FORMAT_INDEX)
            overwrite(&test_session->inputs[i].buffer.region);
    }
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    ck_assert_msg(strstr(r.reason, "passed after the inputs were restored; ") != NULL, "%s", r.reason);
    step = planted_step(&s, "stage1", 16, PLANTED_NAN);
    ck_assert_int_eq(planted_probe(&step).status, MF_STATUS_WRONG);
}

/* ---- kept data ---- */

/* A second session, with another token count, reuses the weights of the first session. The files of the
 * weights are sealed. */
MF_TEST(weights_are_kept, .rows = PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i, 5);
    struct fake_memfd_store k;
    memfd_store_init(&k);
    planted_session_start(&s, &defaults, &k.memfd_store);
    ck_assert_int_eq(k.n, 3); /* two weights and the references */
    ck_assert_int_eq(k.n_found, 0);
    for (int i = 0; i < k.n; i++) {
        int seals = fcntl(k.fds[i], F_GET_SEALS);
        ck_assert_int_eq(seals & (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
                         F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
    }
    s.token = 64;
    planted_session_start(&s, &defaults, &k.memfd_store);
    ck_assert_int_eq(k.n, 4);
    ck_assert_int_eq(k.n_found, 2);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    struct mf_unit_options other = defaults;
    other.seed = 2;
    planted_session_start(&s, &other, &k.memfd_store);
    ck_assert_int_eq(k.n, 7);
}

/* Later sessions on the same shape and data reuse the references; sessions on other data do not. Reused
 * references reject a wrong step and accept a correct one. */
MF_TEST(references_are_kept, .rows = PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i, 5);
    struct fake_memfd_store k;
    memfd_store_init(&k);
    planted_session_start(&s, &defaults, &k.memfd_store);
    int n = k.n;
    planted_session_start(&s, &defaults, &k.memfd_store);
    ck_assert_int_eq(k.n, n);
    ck_assert_int_eq(k.n_found, n);
    for (int wrong = 0; wrong < 2; wrong++) {
        struct mf_step step = planted_step(&s, "stage1", 16, wrong ? PLANTED_NAN : PLANTED_NONE);
        struct mf_unit_result r = planted_probe(&step);
        ck_assert_msg(r.status == (wrong ? MF_STATUS_WRONG : MF_STATUS_OK), "%s", r.reason);
    }
    struct mf_unit_options other = defaults;
    ck_assert_int_eq(mf_routing_parse("zipf:1.2", &other.routing), 0);
    planted_session_start(&s, &other, &k.memfd_store);
    ck_assert_int_eq(k.n, n + 1); /* the session reuses the weights but not the references */
}

MF_TEST(serves_the_same_data_only)
{
    struct mf_shape s = planted_shape(0, 5), other = s;
    planted_session_start(&s, &defaults, NULL);
    struct mf_unit_options o = defaults;
    ck_assert(mf_session_serves(test_session, &s, &o));
    other.token = 6;
    ck_assert(!mf_session_serves(test_session, &other, &o));
    o.seed = 9;
    ck_assert(!mf_session_serves(test_session, &s, &o));
    o = defaults;
    o.routing = (struct mf_routing){.kind = MF_ROUTING_HOT, .parameter = 0.5};
    ck_assert(!mf_session_serves(test_session, &s, &o));
    ck_assert(!mf_session_serves(NULL, &s, &defaults));
}

/* ---- time ---- */

/* A step that takes more than twice the best time of its kind is dropped after its first run. */
MF_TEST(slow_is_dropped)
{
    struct mf_shape s = planted_shape(0, 64);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    double best = 0.01;
    struct mf_unit_result r = planted_probe_against(&step, &best, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_SLOW);
    ck_assert_int_eq(r.verified, 1);
    ck_assert_uint_eq(r.n_samples, 1);
    ck_assert_msg(strstr(r.reason, "times the best of its kind (0.01 µs), limit 2") != NULL, "%s", r.reason);
    ck_assert(strncmp(r.reason, "first run took ", 15) == 0 && r.us > 0.01);
    struct mf_unit_options o = defaults;
    o.exhaustive = true;
    planted_session_start(&s, &o, NULL);
    r = planted_probe_against(&step, &best, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_OK);
    ck_assert_uint_eq(r.n_samples, MF_MEASURE_SAMPLES);
}

#define BEST_OF_KIND "times the best of its kind (1e+04 µs)"
#define BETTER_OF_TWO \
    "faster of two runs took 1.3e+04 µs, 1.30 times the best with the same ops and tensor specs (1e+04 µs)"

/* clang-format off */
static const struct {
    double us[4]; /* first runs; later runs take as long as the last of these */
    int32_t block;
    bool exhaustive;
    enum mf_status status;
    int verified;
    size_t n_samples;
    const char *reason;
} slower_steps[] = {
    /* The rows run after a step of block 16 that takes 10 ms. */
    {{10200, 10200, 10200, 10200}, 16, false, MF_STATUS_OK,   2, 3, ""},
    /* Two runs show that the median of three runs is slower. */
    {{12000, 12000, 12000, 12000}, 16, false, MF_STATUS_OK,   2, 2, ""},
    {{12000, 10000, 12000, 12000}, 16, false, MF_STATUS_OK,   2, 3, ""},
    {{10000, 12000, 12000, 10000}, 16, false, MF_STATUS_OK,   2, 3, ""},
    {{13000, 13000, 10000, 10000}, 16, false, MF_STATUS_SLOW, 1, 2, BETTER_OF_TWO ", limit 1.25"},
    {{13000, 10000, 10000, 10000}, 16, false, MF_STATUS_OK,   2, 3, ""}, /* one run may be disturbed */
    {{31000, 10000, 10000, 10000}, 16, false, MF_STATUS_SLOW, 1, 1, "first run took 3.1e+04 µs, 3.10 times"},
    {{13000, 13000, 13000, 13000}, 16, true,  MF_STATUS_OK,   2, MF_MEASURE_SAMPLES, ""},
    /* No pipeline can use a step of block 16 in place of a step of block 4. */
    {{13000, 13000, 13000, 13000}, 4,  false, MF_STATUS_OK,   2, 2, ""},
    {{16000, 16000, 16000, 16000}, 4,  false, MF_STATUS_SLOW, 1, 2, BEST_OF_KIND ", limit 1.5"},
};
/* clang-format on */

/* A step is dropped after two runs, before its second verification, if it is slower than a step with the same
 * ops and tensor specs. If a step is slower than the best step of its layout, it gets only as many samples as
 * are needed to show this. */
MF_TEST(slower_step_is_timed_less, .rows = MF_ARRAY_LEN(slower_steps))
{
    const double best = 10000;
    struct mf_shape s = planted_shape(0, 64);
    struct mf_unit_options o = defaults;
    o.exhaustive = slower_steps[_i].exhaustive;
    planted_session_start(&s, &o, NULL);
    struct mf_step first = planted_step(&s, "stage1", 16, PLANTED_NONE);
    struct mf_step step = planted_step(&s, "stage1", slower_steps[_i].block, PLANTED_NONE);
    planted_device_set_times(test_device, &best, 1);
    ck_assert_uint_eq(planted_probe(&first).n_samples, o.exhaustive ? MF_MEASURE_SAMPLES : 3);
    planted_device_set_times(test_device, slower_steps[_i].us, MF_ARRAY_LEN(slower_steps[_i].us));
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == slower_steps[_i].status, "%s: %s", mf_status_name(r.status), r.reason);
    ck_assert_int_eq(r.verified, slower_steps[_i].verified);
    ck_assert_uint_eq(r.n_samples, slower_steps[_i].n_samples);
    ck_assert_msg(strstr(r.reason, slower_steps[_i].reason) != NULL, "%s", r.reason);
}

/* A step that only the second verification rejects causes no other step to be dropped, although it was
 * faster. */
MF_TEST(wrong_step_drops_no_other)
{
    const double fast = 5000, right = 10000;
    struct mf_shape s = planted_shape(0, 64);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step wrong = planted_step(&s, "stage2", 16, PLANTED_RACE);
    struct mf_step step = planted_step(&s, "stage2", 16, PLANTED_NONE);
    planted_device_set_times(test_device, &fast, 1);
    ck_assert_int_eq(planted_probe(&wrong).status, MF_STATUS_WRONG);
    planted_device_set_times(test_device, &right, 1);
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    ck_assert_uint_eq(r.n_samples, 3);
}

/* A step without arithmetic is not dropped for its time, because a faster GEMM may need its output. */
MF_TEST(data_movement_is_never_slow)
{
    struct mf_shape s = planted_shape(0, 64);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step step = planted_step(&s, "sort", 16, PLANTED_NONE);
    double best = 0.01;
    struct mf_unit_result r = planted_probe_against(&step, &best, NULL);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    ck_assert_uint_ge(r.n_samples, 3);
}

/* A wrong step is reported as wrong, not as slow. */
MF_TEST(wrong_before_slow)
{
    struct mf_shape s = planted_shape(0, 64);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_SWAPPED);
    double best = 0.01;
    struct mf_unit_result r = planted_probe_against(&step, &best, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_WRONG);
}

static const struct {
    double best_us;
    int64_t cap_ms, want_ms;
} limits[] = {
    {0, 10000, 10000},     /* no best time is known, so the cap applies */
    {100, 10000, 2000},    /* at least two seconds */
    {200000, 10000, 4000}, /* twenty times the best */
    {2e6, 10000, 10000},   /* at most the cap */
};

MF_TEST(hang_limit_is_from_the_best, .rows = MF_ARRAY_LEN(limits))
{
    struct mf_shape s = planted_shape(0, 3);
    struct mf_unit_options o = defaults;
    o.time_cap_ms = limits[_i].cap_ms;
    planted_session_start(&s, &o, NULL);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    double best = limits[_i].best_us;
    int64_t limit;
    (void)planted_probe_against(&step, &best, &limit);
    ck_assert_int_eq(limit, limits[_i].want_ms);
}

/* ---- errors ---- */

MF_TEST(shape_exceeds_memory)
{
    struct mf_shape s = planted_shape(0, 4);
    char why[MF_REASON_MAX];
    s.expert = 4096;
    s.model_dim = 65536;
    s.inter_dim = 65536;
    struct mf_session_args args = {.device = test_device, .shape = s, .options = &defaults};
    ck_assert_int_eq(mf_session_new(&args, why, sizeof(why), &test_session), -ENOMEM);
    ck_assert_msg(strstr(why, "GB of memory") != NULL, "%s", why);
}

MF_TEST(undefined_quantisation)
{
    struct mf_shape s = planted_shape(0, 4);
    char why[MF_REASON_MAX];
    s.q_dtype_a = MF_DTYPE_INT8;
    s.q_dtype_w = MF_DTYPE_FP4X2;
    s.q_type = MF_QTYPE_PER_1X32;
    struct mf_session_args args = {.device = test_device, .shape = s, .options = &defaults};
    ck_assert_int_eq(mf_session_new(&args, why, sizeof(why), &test_session), -EINVAL);
    ck_assert_msg(strstr(why, "QuantType.per_1x32") != NULL, "%s", why);
}

MF_TEST(unknown_family_or_step)
{
    struct mf_shape s = planted_shape(0, 4);
    planted_session_start(&s, &defaults, NULL);
    struct mf_step step = planted_step(&s, "combine", 0, PLANTED_NONE);
    strcpy(step.family, "missing");
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_int_eq(r.status, MF_STATUS_UNSUPPORTED);
    ck_assert_str_eq(r.reason, "this runner has no family missing");
    step = planted_step(&s, "combine", 0, PLANTED_NONE);
    strcpy(step.name, "combine-backwards");
    r = planted_probe(&step);
    ck_assert_int_eq(r.status, MF_STATUS_UNSUPPORTED);
    ck_assert(r.reason[0] && isnan(r.us));
}

/* ---- rotation ---- */

MF_TEST(rotations_are_disjoint_and_equal_work)
{
    struct mf_shape s = {.token = 1, .topk = 4, .expert = 32};
    int32_t ids[4] = {0, 5, 6, 20}, out[4], used[32] = {0};
    struct mf_rotation r;
    bool cold;
    ck_assert_int_eq(mf_rotation_make(&s, ids, &r), 0);
    ck_assert_int_eq(r.active, 4);
    ck_assert_int_ge(r.n, 5);
    ck_assert_int_le(r.n, 8);
    int shared = 0;
    for (int i = 0; i < r.n; i++) {
        mf_rotation_ids(&r, i, &s, ids, out);
        for (int j = 0; j < 4; j++) {
            ck_assert(out[j] >= 0 && out[j] < 32);
            shared += used[out[j]]++ > 0;
        }
    }
    ck_assert_int_le(shared, 6);
    /* The result is the number of rotations that exceed four caches, plus one. For rotations of 10 bytes and
     * a cache of 100 bytes this would be 41, but only r.n rotations exist. */
    ck_assert_int_eq(mf_rotation_count(&r, 10, 100, &cold), r.n);
    ck_assert(!cold);
    ck_assert_int_eq(mf_rotation_count(&r, 200, 100, &cold), 3);
    ck_assert(cold);
    ck_assert_int_eq(mf_rotation_count(&r, 500, 100, &cold), 1);
    ck_assert(cold);
    ck_assert_int_eq(mf_rotation_count(&r, 0, 100, &cold), 1);
    ck_assert(!cold);
}

/* Expert parallelism: routes to other ranks stay unchanged, local routes stay local and differ from each
 * other. A rank without local routes causes no division by zero. */
MF_TEST(rotations_stay_on_the_rank)
{
    struct mf_shape s = {.token = 1, .topk = 6, .expert = 16, .ep_first = 32, .ep_experts = 64};
    int32_t ids[6] = {0, 33, -1, 47, 48, 63}, out[6];
    struct mf_rotation r;
    ck_assert_int_eq(mf_rotation_make(&s, ids, &r), 0);
    ck_assert_int_eq(r.active, 2);
    ck_assert_int_eq(r.routes, 2);
    ck_assert_int_ge(r.n, 5);
    for (int i = 0; i < r.n; i++) {
        mf_rotation_ids(&r, i, &s, ids, out);
        for (int j = 0; j < 6; j++)
            ck_assert(j == 1 || j == 3 ? out[j] >= 32 && out[j] < 48 : out[j] == ids[j]);
        ck_assert_int_ne(out[1], out[3]);
        ck_assert(i == 0 ? out[1] == 33 && out[3] == 47 : out[1] != 33 || out[3] != 47);
    }
    s.ep_first = 1;
    s.expert = 4;
    ck_assert_int_eq(mf_rotation_make(&s, ids, &r), 0);
    ck_assert_int_eq(r.active, 0);
    ck_assert_int_eq(r.n, 1);
}

/* Cold mode times a step on several rotations. This does not affect verification: the step passes every gate.
 */
MF_TEST(cold_mode, .rows = PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i, 2);
    test_device->info.llc_bytes = 1 << 16;
    planted_session_start(&s, &defaults, NULL);
    static const char *const kinds[] = {"stage1", "stage2"};
    for (int i = 0; i < 2; i++) {
        struct mf_step step = planted_step(&s, kinds[i], 4, PLANTED_NONE);
        struct mf_unit_result r = planted_probe(&step);
        ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
        ck_assert_str_eq(r.mode, "cold");
    }
}

/* ---- races ---- */

struct pipeline {
    struct mf_step steps[5];
    size_t n;
};

static struct pipeline pipeline_of(const struct mf_shape *s, int32_t block, enum planted_fault combine_fault)
{
    struct pipeline p = {.n = 0};
    p.steps[p.n++] = planted_step(s, "sort", block, PLANTED_NONE);
    if (s->q_type != MF_QTYPE_NO)
        p.steps[p.n++] = planted_step(s, "quant1", 0, PLANTED_NONE);
    p.steps[p.n++] = planted_step(s, "stage1", block, PLANTED_NONE);
    p.steps[p.n++] = planted_step(s, "stage2", block, PLANTED_NONE);
    p.steps[p.n++] = planted_step(s, "combine", 0, combine_fault);
    return p;
}

static const struct mf_race_plan plan = {
    .stages = {{3, 3}, {8, 2}}, .n_stages = 2, .fresh = 5, .alpha = 0.05};

/* Of two correct and three wrong pipelines, the correct pipelines race, and each wrong pipeline gets a
 * reason. */
MF_TEST(race_of_pipelines, .rows = PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i, 7);
    s.doweight_stage1 = _i % 2;
    planted_session_start(&s, &defaults, NULL);
    struct pipeline p[5] = {pipeline_of(&s, 4, PLANTED_NONE), pipeline_of(&s, 16, PLANTED_NONE),
                            pipeline_of(&s, 4, PLANTED_DESTROYED), pipeline_of(&s, 4, PLANTED_PAST),
                            pipeline_of(&s, 4, PLANTED_NONE)};
    p[4].n--; /* no step covers combine */
    struct mf_race_entry entries[5];
    for (int i = 0; i < 5; i++)
        entries[i] =
            (struct mf_race_entry){.id = 10 + i, .forecast_us = 100, .steps = p[i].steps, .n_steps = p[i].n};
    size_t n_twice = 0;
    struct planted_sink sink;
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(test_session, entries, 5, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 5);
    ck_assert_int_eq(sink.n_outcomes, 1);
    for (int i = 0; i < 2; i++) {
        const struct mf_unit_result *r = &sink.results[i];
        ck_assert_msg(r->status == MF_STATUS_OK, "%s", r->reason);
        ck_assert(r->is_pipeline && r->us > 0);
        ck_assert_int_eq(r->verified, r->n_fresh > 0 ? 2 : 1);
        n_twice += r->verified == 2;
        ck_assert_msg(r->row_err < 0.5 * r->row_limit, "%g of %g", r->row_err, r->row_limit);
    }
    ck_assert_int_eq(sink.results[2].status, MF_STATUS_WRONG);
    ck_assert_int_eq(sink.results[3].status, MF_STATUS_WRONG);
    ck_assert_msg(strstr(sink.results[3].reason, "guard: 3 bytes") != NULL, "%s", sink.results[3].reason);
    ck_assert_int_eq(sink.results[4].status, MF_STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(sink.results[4].reason, "no step gives the layer's output") != NULL, "%s",
                  sink.results[4].reason);
    ck_assert(sink.outcome.won.winner == 10 || sink.outcome.won.winner == 11);
    ck_assert(sink.outcome.won.us > 0);
    ck_assert_int_eq(sink.outcome.rounds, 11);
    ck_assert_int_gt(sink.outcome.active, 0);
    /* There is one begin message per entry, per sample, and per verified run of a correct entry. So if the
     * runner dies in the race, the right entry is blamed. Verified runs are not samples here, because the
     * steps are not built in. */
    ck_assert_uint_ge(n_twice, 1);
    ck_assert_uint_eq(sink.n_begun, 5 + (size_t)sink.outcome.calls + 2 + n_twice);
}

/* Opens a pipeline as an entrant with its own buffers, valid until the session ends. */
static void enter(const struct mf_shape *s, const struct pipeline *p, struct mf_pipeline **ret_opened,
                  struct mf_race_buffers *buffers, struct mf_entrant *ret)
{
    char text[MF_PIPELINE_TEXT_MAX] = "", why[MF_REASON_MAX] = "";
    for (size_t i = 0; i < p->n; i++)
        ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), p->steps[i].family, p->steps[i].name), 0);
    ck_assert_int_eq(
        mf_pipeline_open(test_session->device, s, &planted_set, text, why, sizeof(why), ret_opened), 0);
    ck_assert_int_eq(mf_race_buffers_init(buffers, test_session), 0);
    ck_assert_int_eq(mf_entrant_init(ret, buffers, *ret_opened, why), MF_STATUS_OK);
}

/* Verified runs use rotation 0, and samples use the other rotations, so no sample is timed on weights that a
 * verified run has cached. */
MF_TEST(samples_avoid_the_verified_rotation)
{
    struct mf_shape s = planted_shape(0, 1);
    char why[MF_REASON_MAX] = "";
    struct mf_pipeline *opened = NULL;
    struct mf_race_buffers buffers;
    struct mf_entrant e;
    double us;
    test_device->info.llc_bytes = 1 << 17;
    planted_session_start(&s, &defaults, NULL);
    struct pipeline p = pipeline_of(&s, 4, PLANTED_NONE);
    enter(&s, &p, &opened, &buffers, &e);
    ck_assert_int_gt(e.measured.n_rotations, 2);
    ck_assert(!mf_entrant_check_is_sample(&e));
    for (int i = 0; i < 3 * e.measured.n_rotations; i++) {
        ck_assert_msg(i % 2 || mf_entrant_check(&e, &us, why) == MF_STATUS_OK, "%s", why);
        ck_assert_msg(mf_entrant_sample(&e, &us, why) == MF_STATUS_OK, "%s", why);
        ck_assert_int_ne(e.measured.rotation, 0);
    }
    mf_pipeline_close(opened);
}

/* Log of device calls: 'w' for an eviction of the caches, 't' for a timed run. */
static struct {
    struct mf_device_ops ops;
    int (*time)(struct mf_device *, mf_launch_fn, void *, int, double *);
    int r; /* result of evict_caches */
    char events[256];
    size_t n;
} device_log;

static void log_event(char what)
{
    ck_assert_uint_lt(device_log.n, sizeof(device_log.events) - 1);
    device_log.events[device_log.n++] = what;
}
static int evict_logged(struct mf_device *d, double *ret_bytes)
{
    log_event('w');
    *ret_bytes = 2 * (double)d->info.llc_bytes;
    return device_log.r;
}
static int time_logged(struct mf_device *d, mf_launch_fn launch, void *context, int n, double *ret_us)
{
    log_event('t');
    return device_log.time(d, launch, context, n, ret_us);
}

/* A race evicts the L2 cache before every run of a pipeline, verified runs included, so that each run is
 * cold. The probe of a single step evicts nothing. */
MF_TEST(race_evicts_the_l2_cache)
{
    struct mf_shape s = planted_shape(0, 7);
    struct planted_sink sink;
    struct pipeline p = pipeline_of(&s, 4, PLANTED_NONE);
    char why[MF_REASON_MAX] = "";
    struct mf_pipeline *opened = NULL;
    struct mf_race_buffers buffers;
    struct mf_entrant e;
    double us;
    bool cold = false;

    test_device->info.llc_bytes = 1 << 30; /* so large that the rotations do not exceed it */
    device_log.ops = *test_device->ops;
    device_log.time = test_device->ops->time;
    device_log.ops.time = time_logged;
    device_log.ops.evict_caches = evict_logged;
    test_device->ops = &device_log.ops;
    planted_session_start(&s, &defaults, NULL);

    planted_sink_init(&sink);
    const struct mf_probe_step step = {1, p.steps[0]};
    device_log.n = 0;
    ck_assert_int_eq(mf_session_probe(test_session, &step, 1, NULL, NULL, &sink.sink), 0);
    ck_assert_uint_gt(device_log.n, 0);
    ck_assert_ptr_null(memchr(device_log.events, 'w', device_log.n));

    enter(&s, &p, &opened, &buffers, &e);
    device_log.n = 0;
    ck_assert_int_eq(mf_entrant_verify(&e, why), MF_STATUS_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(mf_entrant_sample(&e, &us, why), MF_STATUS_OK);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mf_measure_run(&e.measured, 0, &us, &cold), 0);
        ck_assert(cold);
    }
    device_log.r = -EIO; /* no run is timed if the eviction fails */
    ck_assert_int_ne(mf_entrant_sample(&e, &us, why), MF_STATUS_OK);
    device_log.events[device_log.n] = 0;
    ck_assert_str_eq(device_log.events, "wtwtwtwtwtwtwtw");
    mf_pipeline_close(opened);
}

/* A pipeline that is alone in its group would win the group, but its runs differ. The second verification
 * rejects it before it gets a time. Without fresh measurements, every entry is verified twice before the
 * race. */
MF_TEST(race_verifies_winners_twice, .rows = 2)
{
    struct mf_shape s = planted_shape(0, 7);
    planted_session_start(&s, &defaults, NULL);
    struct pipeline p[2] = {pipeline_of(&s, 4, PLANTED_NONE), pipeline_of(&s, 4, PLANTED_RACE)};
    struct mf_race_entry entries[2];
    struct mf_race_plan variant = plan;
    struct planted_sink sink;
    for (int i = 0; i < 2; i++)
        entries[i] = (struct mf_race_entry){
            .id = 10 + i, .group = i, .forecast_us = 100, .steps = p[i].steps, .n_steps = p[i].n};
    variant.fresh = _i ? 5 : 0;
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(test_session, entries, 2, &variant, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 2);
    ck_assert_int_eq(sink.results[0].status, MF_STATUS_OK);
    ck_assert_int_eq(sink.results[0].verified, 2);
    ck_assert_int_eq(sink.results[1].status, MF_STATUS_WRONG);
    ck_assert_int_eq(sink.results[1].verified, 1);
    ck_assert_msg(strstr(sink.results[1].reason, "second run") != NULL, "%s", sink.results[1].reason);
    ck_assert_int_eq(sink.outcome.won.winner, 10);
    ck_assert_int_eq(sink.outcome.groups[1].winner, 0);
}

MF_TEST(race_of_wrong_pipelines)
{
    struct mf_shape s = planted_shape(0, 7);
    planted_session_start(&s, &defaults, NULL);
    struct pipeline p = pipeline_of(&s, 4, PLANTED_TAIL);
    struct mf_race_entry entry = {.id = 3, .steps = p.steps, .n_steps = p.n};
    struct planted_sink sink;
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(test_session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_int_eq(sink.n_outcomes, 0);
    ck_assert_msg(strstr(sink.results[0].reason, "unwritten: row 0 of y") != NULL, "%s",
                  sink.results[0].reason);
}

MF_TEST(canary_time_is_plausible)
{
    char why[MF_REASON_MAX];
    struct mf_device *d;
    ck_assert_int_eq(mf_device_open("cpu:0", why, sizeof(why), &d), 0);
    double us = mf_canary_us(d);
    ck_assert(us > 1 && us < 1e6);
    d->ops->free(d);
}

/* clang-format off */
static const struct {
    int n;       /* number of slow canary runs; three slow runs mark the device as slow */
    bool samples_discarded; /* samples taken meanwhile are discarded */
} slowdowns[] = {
    {1, false},    /* one slow canary may be an interrupt */
    {3, true},
    {6, true},     /* slow for a while */
    {1000, false}, /* permanently slow, so this is the new normal speed */
};
/* clang-format on */

/* Samples taken while the canary reports a slow device are discarded and taken again, so the step does not
 * get status `slow`. */
MF_TEST(slow_device, .rows = MF_ARRAY_LEN(slowdowns))
{
    enum { FACTOR = 10000 }; /* more than any load of this machine causes */
    struct mf_shape s = planted_shape(0, 7);
    struct mf_unit_options options = defaults;
    /* Exhaustive, so that the first run drops no step. Otherwise, load on this machine could slow that run
     * and so drop a step. */
    options.exhaustive = slowdowns[_i].samples_discarded;
    planted_session_start(&s, &options, NULL);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    struct mf_unit_result reference = planted_probe(&step), r;
    ck_assert_int_eq(reference.status, MF_STATUS_OK);
    ck_assert_double_eq(reference.canary, 1);
    planted_device_slow(test_device, FACTOR, slowdowns[_i].n);
    r = planted_probe(&step);
    ck_assert_msg(r.status == (slowdowns[_i].samples_discarded ? MF_STATUS_OK : MF_STATUS_SLOW), "%s",
                  r.reason);
    ck_assert_double_eq(r.canary, 1);
    ck_assert_msg((r.us < reference.us * 100) == slowdowns[_i].samples_discarded, "%g us, %g before", r.us,
                  reference.us);
}

/* A race does not begin while the device is slow, and a round that ends with a slow canary is repeated: the
 * times are as on the calm device. */
MF_TEST(slow_device_in_race, .rows = 2)
{
    enum { FACTOR = 10000 }; /* more than any load of this machine causes */
    static const int n_slow[] = {3, 6};
    struct mf_shape s = planted_shape(0, 7);
    planted_session_start(&s, &defaults, NULL);
    struct pipeline p = pipeline_of(&s, 16, PLANTED_NONE);
    struct mf_race_entry entry = {.id = 10, .forecast_us = 100, .steps = p.steps, .n_steps = p.n};
    struct planted_sink calm, sink;
    planted_sink_init(&calm);
    ck_assert_int_eq(mf_session_race(test_session, &entry, 1, &plan, &calm.sink), 0);
    planted_device_slow(test_device, FACTOR, n_slow[_i]);
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(test_session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_msg(sink.results[0].us < calm.results[0].us * 100, "%g us, %g before", sink.results[0].us,
                  calm.results[0].us);
}

/* In a probe and in a race, `warmup` runs follow the verified run and precede the samples. */
MF_TEST(warm_up, .rows = 5)
{
    enum { WARM_US = 10000 };
    struct mf_shape s = planted_shape(0, 7);
    struct mf_unit_options o = defaults;
    struct planted_sink sink;
    struct mf_probe_step probed = {.id = 1, .step = planted_step(&s, "stage1", 16, PLANTED_NONE)};
    struct pipeline p = pipeline_of(&s, 4, PLANTED_NONE);
    struct mf_race_entry entry = {.id = 10, .forecast_us = WARM_US, .steps = p.steps, .n_steps = p.n};
    o.warmup = _i;
    planted_session_start(&s, &o, NULL);
    planted_device_warm_up(test_device, 1 + 3);
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_probe(test_session, &probed, 1, NULL, NULL, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_msg(sink.results[0].status == MF_STATUS_OK, "%s", sink.results[0].reason);
    ck_assert_msg((slowest(&sink) > WARM_US) == (_i < 3), "%g us after %d runs", slowest(&sink), _i);

    planted_sink_init(&sink);
    planted_device_warm_up(test_device, 1 + 3);
    ck_assert_int_eq(mf_session_race(test_session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_msg(sink.results[0].status == MF_STATUS_OK, "%s", sink.results[0].reason);
    ck_assert_msg((slowest(&sink) > WARM_US) == (_i < 3), "%g us after %d runs", slowest(&sink), _i);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = planted_setup, .teardown = planted_teardown});
}
