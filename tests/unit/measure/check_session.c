/* Sessions: what is kept and found again, what is dropped by time, limits, refusals, races of pipelines. */
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
#include "measure/session/session.h"
#include "measure/session/session_data.h"
#include "support/kernels/planted.h"

#include "support/kernels/test_memfd_store.h"
#include "support/mf_check.h"

/* ---- helpers ---- */

static const struct mf_unit_options defaults = {.err_ratio = 0.1, .seed = 1, .time_cap_ms = 10000};

static struct mf_session *session_of(struct mf_device *d, const struct mf_shape *s,
                                     struct mf_memfd_store *memfd_store, const struct mf_unit_options *o)
{
    struct mf_session *session = NULL;
    char why[MF_REASON_MAX];
    struct mf_session_args args = {
        .device = d, .shape = *s, .options = o, .memfd_store = memfd_store, .extra = &planted_set};
    ck_assert_msg(mf_session_new(&args, why, sizeof(why), &session) == 0, "%s", why);
    return session;
}

static struct mf_unit_result probe(struct mf_session *session, const struct mf_step *step, mf_best_fn best,
                                   void *context, int64_t *ret_limit_ms)
{
    struct planted_sink sink;
    struct mf_probe_step p = {.id = 1, .step = *step};
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_probe(session, &p, 1, best, context, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    if (ret_limit_ms)
        *ret_limit_ms = sink.limit_ms;
    sink.results[0].samples = NULL; /* they were the sink's */
    return sink.results[0];
}

static double slowest(const struct planted_sink *sink)
{
    double most = 0;

    for (size_t i = 0; i < MF_MIN(sink->results[0].n_samples, MF_ARRAY_LEN(sink->samples)); i++)
        most = fmax(most, sink->samples[i]);
    return most;
}

static double best_is(void *context, mf_ops covers)
{
    (void)covers;
    return *(double *)context;
}

/* ---- buffers ---- */

/* Pointers to outputs stay valid while more outputs are made. */
START_TEST(output_pointers_stay_valid)
{
    enum { N = 100 };
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 3);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_guarded *out[N][2], *again[2];
    struct mf_tensor_spec a = {.tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted"};
    void *between[N];
    for (int i = 0; i < N; i++) {
        a.block = i + 1;
        ck_assert_int_eq(mf_session_output(session, &a, out[i]), 0);
        between[i] = malloc(4096); /* keeps a list from growing in place */
        ck_assert_ptr_nonnull(between[i]);
    }
    for (int i = 0; i < N; i++) {
        a.block = i + 1;
        ck_assert_int_eq(mf_session_output(session, &a, again), 0);
        ck_assert_ptr_eq(again[0], out[i][0]);
        ck_assert_ptr_eq(again[1], out[i][1]);
        free(between[i]);
    }
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* ---- what is kept ---- */

/* The second session, of another token count, finds the weights of the first; they are sealed and the same bits. */
START_TEST(weights_are_kept)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(_i, 5);
    struct test_keeper k;
    memfd_store_init(&k);
    struct mf_session *first = session_of(d, &s, &k.memfd_store, &defaults);
    ck_assert_int_eq(k.n, 3); /* the references too */
    ck_assert_int_eq(k.n_found, 0);
    first = mf_session_free(first);
    for (int i = 0; i < k.n; i++) {
        int seals = fcntl(k.fds[i], F_GET_SEALS);
        ck_assert_int_eq(seals & (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
                         F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
    }
    s.token = 64;
    struct mf_session *second = session_of(d, &s, &k.memfd_store, &defaults);
    ck_assert_int_eq(k.n, 4);
    ck_assert_int_eq(k.n_found, 2);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    struct mf_unit_result r = probe(second, &step, NULL, NULL, NULL);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    second = mf_session_free(second);
    struct mf_unit_options other = defaults;
    other.seed = 2;
    second = session_of(d, &s, &k.memfd_store, &other);
    ck_assert_int_eq(k.n, 7);
    second = mf_session_free(second);
    d->ops->free(d);
}
END_TEST

/* The references of a shape serve every later session on it, and none on other data. What is found refuses a wrong step
 * and lets a right one pass, as what is computed does. */
START_TEST(references_are_kept)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(_i, 5);
    struct test_keeper k;
    memfd_store_init(&k);
    struct mf_session *session = session_of(d, &s, &k.memfd_store, &defaults);
    int n = k.n;
    session = mf_session_free(session);
    session = session_of(d, &s, &k.memfd_store, &defaults);
    ck_assert_int_eq(k.n, n);
    ck_assert_int_eq(k.n_found, n);
    for (int wrong = 0; wrong < 2; wrong++) {
        struct mf_step step = planted_step(&s, "stage1", 16, wrong ? PLANTED_NAN : PLANTED_NONE);
        struct mf_unit_result r = probe(session, &step, NULL, NULL, NULL);
        ck_assert_msg(r.status == (wrong ? MF_STATUS_WRONG : MF_STATUS_OK), "%s", r.reason);
    }
    session = mf_session_free(session);
    struct mf_unit_options other = defaults;
    ck_assert_int_eq(mf_routing_parse("zipf:1.2", &other.routing), 0);
    session = session_of(d, &s, &k.memfd_store, &other);
    ck_assert_int_eq(k.n, n + 1); /* the weights serve, the references do not */
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

START_TEST(serves_the_same_data_only)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 5), other = s;
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_unit_options o = defaults;
    ck_assert(mf_session_serves(session, &s, &o));
    other.token = 6;
    ck_assert(!mf_session_serves(session, &other, &o));
    o.seed = 9;
    ck_assert(!mf_session_serves(session, &s, &o));
    o = defaults;
    o.routing = (struct mf_routing){.kind = MF_ROUTING_HOT, .parameter = 0.5};
    ck_assert(!mf_session_serves(session, &s, &o));
    ck_assert(!mf_session_serves(NULL, &s, &defaults));
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* ---- time ---- */

/* The first probe sets the best of its kind; a step that needs twice that is dropped after its first run. */
START_TEST(slow_is_dropped)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 64);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    double best = 0.01;
    struct mf_unit_result r = probe(session, &step, best_is, &best, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_SLOW);
    ck_assert_int_eq(r.verified, 1);
    ck_assert_uint_eq(r.n_samples, 1);
    ck_assert_msg(strstr(r.reason, "times the best of its kind (0.01 µs), limit 2") != NULL, "%s", r.reason);
    ck_assert(strncmp(r.reason, "its first run took ", 19) == 0 && r.us > 0.01);
    struct mf_unit_options o = defaults;
    o.exhaustive = true;
    struct mf_session *thorough = session_of(d, &s, NULL, &o);
    r = probe(thorough, &step, best_is, &best, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_OK);
    ck_assert_uint_eq(r.n_samples, MF_MEASURE_SAMPLES);
    thorough = mf_session_free(thorough);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

#define BETTER_OF_TWO \
    "its better run of two took 1.3e+04 µs, 1.30 times the best that could stand in its place (1e+04 µs)"

/* clang-format off */
static const struct {
    double us[4]; /* of its first runs; the last, and all behind it */
    int32_t block;
    bool exhaustive;
    enum mf_status status;
    int verified;
    size_t n_samples;
    const char *reason;
} behind[] = {
    /* beside one of block 16 that takes 10 ms */
    {{10200, 10200, 10200, 10200}, 16, false, MF_STATUS_OK,   2, 3, ""},
    {{12000, 12000, 12000, 12000}, 16, false, MF_STATUS_OK,   2, 2, ""}, /* its median of three is behind by two */
    {{12000, 10000, 12000, 12000}, 16, false, MF_STATUS_OK,   2, 3, ""},
    {{10000, 12000, 12000, 10000}, 16, false, MF_STATUS_OK,   2, 3, ""},
    {{13000, 13000, 10000, 10000}, 16, false, MF_STATUS_SLOW, 1, 2, BETTER_OF_TWO ", limit 1.25"},
    {{13000, 10000, 10000, 10000}, 16, false, MF_STATUS_OK,   2, 3, ""}, /* one run may be interrupted */
    {{31000, 10000, 10000, 10000}, 16, false, MF_STATUS_SLOW, 1, 1, "its first run took 3.1e+04 µs, 3.10 times"},
    {{13000, 13000, 13000, 13000}, 16, true,  MF_STATUS_OK,   2, MF_MEASURE_SAMPLES, ""},
    /* no pipeline has one of block 16 in the place of one of block 4 */
    {{13000, 13000, 13000, 13000}, 4,  false, MF_STATUS_OK,   2, 2, ""},
    {{16000, 16000, 16000, 16000}, 4,  false, MF_STATUS_SLOW, 1, 2, "times the best of its kind (1e+04 µs), limit 1.5"},
};
/* clang-format on */

/* What is behind what could stand in its place is dropped by two runs, before its second check; what is behind the best of its
 * layout has no more samples than tell that. */
START_TEST(behind_is_cut_short)
{
    const double best = 10000;
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 64);
    struct mf_unit_options o = defaults;
    o.exhaustive = behind[_i].exhaustive;
    struct mf_session *session = session_of(d, &s, NULL, &o);
    struct mf_step first = planted_step(&s, "stage1", 16, PLANTED_NONE);
    struct mf_step step = planted_step(&s, "stage1", behind[_i].block, PLANTED_NONE);
    planted_device_tell(d, &best, 1);
    ck_assert_uint_eq(probe(session, &first, NULL, NULL, NULL).n_samples,
                      o.exhaustive ? MF_MEASURE_SAMPLES : 3);
    planted_device_tell(d, behind[_i].us, MF_ARRAY_LEN(behind[_i].us));
    struct mf_unit_result r = probe(session, &step, NULL, NULL, NULL);
    ck_assert_msg(r.status == behind[_i].status, "%s: %s", mf_status_name(r.status), r.reason);
    ck_assert_int_eq(r.verified, behind[_i].verified);
    ck_assert_uint_eq(r.n_samples, behind[_i].n_samples);
    ck_assert_msg(strstr(r.reason, behind[_i].reason) != NULL, "%s", r.reason);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* What only the second check finds is found before anything is held against it. */
START_TEST(wrong_drops_nobody)
{
    const double fast = 5000, right = 10000;
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 64);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_step wrong = planted_step(&s, "stage2", 16, PLANTED_RACE);
    struct mf_step step = planted_step(&s, "stage2", 16, PLANTED_NONE);
    planted_device_tell(d, &fast, 1);
    ck_assert_int_eq(probe(session, &wrong, NULL, NULL, NULL).status, MF_STATUS_WRONG);
    planted_device_tell(d, &right, 1);
    struct mf_unit_result r = probe(session, &step, NULL, NULL, NULL);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    ck_assert_uint_eq(r.n_samples, 3);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* A step without arithmetic stays, however long it takes beside another of its kind: a faster GEMM may need it. */
START_TEST(data_movement_is_not_slow)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 64);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_step step = planted_step(&s, "sort", 16, PLANTED_NONE);
    double best = 0.01;
    struct mf_unit_result r = probe(session, &step, best_is, &best, NULL);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    ck_assert_uint_ge(r.n_samples, 3);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* A wrong step is wrong, however slow. */
START_TEST(wrong_before_slow)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 64);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_SWAPPED);
    double best = 0.01;
    struct mf_unit_result r = probe(session, &step, best_is, &best, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_WRONG);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

static const struct {
    double best_us;
    int64_t cap_ms, want_ms;
} limits[] = {
    {0, 10000, 10000},     /* nothing known: the cap */
    {100, 10000, 2000},    /* never below two seconds */
    {200000, 10000, 4000}, /* twenty times the best */
    {2e6, 10000, 10000},   /* never above the cap */
};

START_TEST(hang_limit_is_from_the_best)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 3);
    struct mf_unit_options o = defaults;
    o.time_cap_ms = limits[_i].cap_ms;
    struct mf_session *session = session_of(d, &s, NULL, &o);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    double best = limits[_i].best_us;
    int64_t limit;
    (void)probe(session, &step, best_is, &best, &limit);
    ck_assert_int_eq(limit, limits[_i].want_ms);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* ---- refusals ---- */

START_TEST(too_large_a_shape)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 4);
    struct mf_session *session = NULL;
    char why[MF_REASON_MAX];
    s.expert = 4096;
    s.model_dim = 65536;
    s.inter_dim = 65536;
    struct mf_session_args args = {.device = d, .shape = s, .options = &defaults};
    ck_assert_int_eq(mf_session_new(&args, why, sizeof(why), &session), -ENOMEM);
    ck_assert_msg(strstr(why, "GB of memory") != NULL, "%s", why);
    d->ops->free(d);
}
END_TEST

START_TEST(no_definition)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 4);
    struct mf_session *session = NULL;
    char why[MF_REASON_MAX];
    s.q_dtype_a = MF_DTYPE_INT8;
    s.q_dtype_w = MF_DTYPE_FP4X2;
    s.q_type = MF_QTYPE_PER_1X32;
    struct mf_session_args args = {.device = d, .shape = s, .options = &defaults};
    ck_assert_int_eq(mf_session_new(&args, why, sizeof(why), &session), -EINVAL);
    ck_assert_msg(strstr(why, "QuantType.per_1x32") != NULL, "%s", why);
    d->ops->free(d);
}
END_TEST

START_TEST(unknown_family_or_step)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 4);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct mf_step step = planted_step(&s, "combine", 0, PLANTED_NONE);
    strcpy(step.family, "nobody");
    struct mf_unit_result r = probe(session, &step, NULL, NULL, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_UNSUPPORTED);
    ck_assert_str_eq(r.reason, "this runner has no family nobody");
    step = planted_step(&s, "combine", 0, PLANTED_NONE);
    strcpy(step.name, "combine-backwards");
    r = probe(session, &step, NULL, NULL, NULL);
    ck_assert_int_eq(r.status, MF_STATUS_UNSUPPORTED);
    ck_assert(r.reason[0] && isnan(r.us));
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* ---- memory that others can map ---- */

static bool located;

static int locating_launch(struct mf_kernel *k, const struct mf_launch *l)
{
    int fd;
    uint64_t offset;
    located = mf_session_locate(l->needs[0].part[0], &fd, &offset) == 0 &&
              mf_session_locate(l->gives[0].part[0], &fd, &offset) == 0;
    uint32_t here, there = 0;
    memcpy(&here, l->gives[0].part[0], sizeof(here));
    located &= pread(fd, &there, sizeof(there), (off_t)offset) == sizeof(there) && here == there;
    return planted_family.launch(k, l);
}

START_TEST(buffers_lie_in_files)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 4);
    struct mf_family locating = planted_family;
    const struct mf_family *list[] = {&locating};
    struct mf_family_set set = {list, 1};
    struct mf_session *session = NULL;
    char why[MF_REASON_MAX];
    int on_stack, fd;
    uint64_t offset;
    locating.launch = locating_launch;
    struct mf_session_args args = {.device = d, .shape = s, .options = &defaults, .extra = &set};
    ck_assert_int_eq(mf_session_new(&args, why, sizeof(why), &session), 0);
    struct mf_step step = planted_step(&s, "combine", 0, PLANTED_NONE);
    ck_assert_int_eq(probe(session, &step, NULL, NULL, NULL).status, MF_STATUS_OK);
    ck_assert(located);
    ck_assert_int_eq(mf_session_locate(&on_stack, &fd, &offset), -ENOENT);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* ---- rotation ---- */

START_TEST(rotations_are_apart_and_equal_work)
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
    /* four caches and one more: 10 of 100 need 41, which are not to be had */
    ck_assert_int_eq(mf_rotation_count(&r, 10, 100, &cold), r.n);
    ck_assert(!cold);
    ck_assert_int_eq(mf_rotation_count(&r, 200, 100, &cold), 3);
    ck_assert(cold);
    ck_assert_int_eq(mf_rotation_count(&r, 500, 100, &cold), 1);
    ck_assert(cold);
    ck_assert_int_eq(mf_rotation_count(&r, 0, 100, &cold), 1);
    ck_assert(!cold);
}
END_TEST

/* Of a share of the experts: routes to others stay, routes that are here stay here and apart; none at all is no division. */
START_TEST(rotations_keep_to_the_share)
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
END_TEST

/* Rotated timing changes nothing of what is verified: cold mode, several rotations, every gate passed. */
START_TEST(cold_mode)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(_i, 2);
    d->info.llc_bytes = 1 << 16;
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    static const char *const kinds[] = {"stage1", "stage2"};
    for (int i = 0; i < 2; i++) {
        struct mf_step step = planted_step(&s, kinds[i], 4, PLANTED_NONE);
        struct mf_unit_result r = probe(session, &step, NULL, NULL, NULL);
        ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
        ck_assert_str_eq(r.mode, "cold");
    }
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

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

/* Two right pipelines and three wrong ones: the right ones are raced, the others have their reason. */
START_TEST(race_of_pipelines)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(_i, 7);
    s.doweight_stage1 = _i % 2;
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct pipeline p[5] = {pipeline_of(&s, 4, PLANTED_NONE), pipeline_of(&s, 16, PLANTED_NONE),
                            pipeline_of(&s, 4, PLANTED_DESTROYED), pipeline_of(&s, 4, PLANTED_PAST),
                            pipeline_of(&s, 4, PLANTED_NONE)};
    p[4].n--; /* nobody combines */
    struct mf_race_entry entries[5];
    for (int i = 0; i < 5; i++)
        entries[i] =
            (struct mf_race_entry){.id = 10 + i, .forecast_us = 100, .steps = p[i].steps, .n_steps = p[i].n};
    size_t n_twice = 0;
    struct planted_sink sink;
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(session, entries, 5, &plan, &sink.sink), 0);
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
    /* a begin for each, one for each sample, and one for each check of those that are right, which is no sample as these steps are not
     * of the build: so that a death in the race is blamed on the right one */
    ck_assert_uint_ge(n_twice, 1);
    ck_assert_uint_eq(sink.n_begun, 5 + (size_t)sink.outcome.calls + 2 + n_twice);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* A pipeline as an entrant of a course of its own, good until the session ends. */
static void enter(struct mf_session *session, const struct mf_shape *s, const struct pipeline *p,
                  struct mf_pipeline **ret_opened, struct mf_course *course, struct mf_entrant *ret)
{
    char text[MF_PIPELINE_TEXT_MAX] = "", why[MF_REASON_MAX] = "";
    for (size_t i = 0; i < p->n; i++)
        ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), p->steps[i].family, p->steps[i].name), 0);
    ck_assert_int_eq(mf_pipeline_open(session->device, s, &planted_set, text, why, sizeof(why), ret_opened),
                     0);
    ck_assert_int_eq(mf_course_init(course, session), 0);
    ck_assert_int_eq(mf_entrant_init(ret, course, *ret_opened, why), MF_STATUS_OK);
}

/* Checked runs have a rotation of their own: whose weights it has just brought into a cache is not timed by it next. */
START_TEST(samples_keep_off_the_checked_rotation)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 1);
    char why[MF_REASON_MAX] = "";
    struct mf_pipeline *opened = NULL;
    struct mf_course course;
    struct mf_entrant e;
    double us;
    d->info.llc_bytes = 1 << 17;
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct pipeline p = pipeline_of(&s, 4, PLANTED_NONE);
    enter(session, &s, &p, &opened, &course, &e);
    ck_assert_int_gt(e.measured.n_rotations, 2);
    ck_assert(!mf_entrant_check_counts(&e));
    for (int i = 0; i < 3 * e.measured.n_rotations; i++) {
        ck_assert_msg(i % 2 || mf_entrant_check(&e, &us, why) == MF_STATUS_OK, "%s", why);
        ck_assert_msg(mf_entrant_sample(&e, &us, why) == MF_STATUS_OK, "%s", why);
        ck_assert_int_ne(e.measured.rotation, 0);
    }
    mf_pipeline_close(opened);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* What a device does before and for a timed run, as a string: w, t. */
static struct {
    struct mf_device_ops ops;
    int (*time)(struct mf_device *, mf_launch_fn, void *, int, double *);
    int r; /* of a wash */
    char did[256];
    size_t n;
} washing;

static void note(char what)
{
    ck_assert_uint_lt(washing.n, sizeof(washing.did) - 1);
    washing.did[washing.n++] = what;
}
static int wash_noted(struct mf_device *d, double *ret_bytes)
{
    note('w');
    *ret_bytes = 2 * (double)d->info.llc_bytes;
    return washing.r;
}
static int time_noted(struct mf_device *d, mf_launch_fn launch, void *context, int n, double *ret_us)
{
    note('t');
    return washing.time(d, launch, context, n, ret_us);
}

/* Each run of a pipeline is timed behind a wash of the last cache, checked runs too, and is cold whatever ran before it; of a step that is
 * timed alone the cache is left as it is. */
START_TEST(a_race_washes_the_last_cache)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 7);
    struct planted_sink sink;
    struct pipeline p = pipeline_of(&s, 4, PLANTED_NONE);
    char why[MF_REASON_MAX] = "";
    struct mf_pipeline *opened = NULL;
    struct mf_course course;
    struct mf_entrant e;
    double us;
    bool cold = false;

    d->info.llc_bytes = 1 << 30; /* no rotation passes it */
    washing.ops = *d->ops;
    washing.time = d->ops->time;
    washing.ops.time = time_noted;
    washing.ops.wash = wash_noted;
    d->ops = &washing.ops;
    struct mf_session *session = session_of(d, &s, NULL, &defaults);

    planted_sink_init(&sink);
    const struct mf_probe_step step = {1, p.steps[0]};
    washing.n = 0;
    ck_assert_int_eq(mf_session_probe(session, &step, 1, NULL, NULL, &sink.sink), 0);
    ck_assert_uint_gt(washing.n, 0);
    ck_assert_ptr_null(memchr(washing.did, 'w', washing.n));

    enter(session, &s, &p, &opened, &course, &e);
    washing.n = 0;
    ck_assert_int_eq(mf_entrant_verify(&e, why), MF_STATUS_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(mf_entrant_sample(&e, &us, why), MF_STATUS_OK);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mf_measure_run(&e.measured, 0, &us, &cold), 0);
        ck_assert(cold);
    }
    washing.r = -EIO; /* nothing is timed on a cache that is as others left it */
    ck_assert_int_ne(mf_entrant_sample(&e, &us, why), MF_STATUS_OK);
    washing.did[washing.n] = 0;
    ck_assert_str_eq(washing.did, "wtwtwtwtwtwtwtw");
    mf_pipeline_close(opened);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* A pipeline that is right, but not the same twice, alone in its group: it would win there, and is refused before it has its number.
 * Where nobody is measured afresh all are checked twice before they race. */
START_TEST(race_checks_winners_twice)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 7);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct pipeline p[2] = {pipeline_of(&s, 4, PLANTED_NONE), pipeline_of(&s, 4, PLANTED_RACE)};
    struct mf_race_entry entries[2];
    struct mf_race_plan late_or_not = plan;
    struct planted_sink sink;
    for (int i = 0; i < 2; i++)
        entries[i] = (struct mf_race_entry){
            .id = 10 + i, .group = i, .forecast_us = 100, .steps = p[i].steps, .n_steps = p[i].n};
    late_or_not.fresh = _i ? 5 : 0;
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(session, entries, 2, &late_or_not, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 2);
    ck_assert_int_eq(sink.results[0].status, MF_STATUS_OK);
    ck_assert_int_eq(sink.results[0].verified, 2);
    ck_assert_int_eq(sink.results[1].status, MF_STATUS_WRONG);
    ck_assert_int_eq(sink.results[1].verified, 1);
    ck_assert_msg(strstr(sink.results[1].reason, "second run") != NULL, "%s", sink.results[1].reason);
    ck_assert_int_eq(sink.outcome.won.winner, 10);
    ck_assert_int_eq(sink.outcome.groups[1].winner, 0);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

START_TEST(race_that_nobody_finishes)
{
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 7);
    struct mf_session *session = session_of(d, &s, NULL, &defaults);
    struct pipeline p = pipeline_of(&s, 4, PLANTED_TAIL);
    struct mf_race_entry entry = {.id = 3, .steps = p.steps, .n_steps = p.n};
    struct planted_sink sink;
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_int_eq(sink.n_outcomes, 0);
    ck_assert_msg(strstr(sink.results[0].reason, "unwritten: row 0 of y") != NULL, "%s",
                  sink.results[0].reason);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

START_TEST(canary_is_a_time)
{
    char why[MF_REASON_MAX];
    struct mf_device *d;
    ck_assert_int_eq(mf_device_open("cpu:0", why, sizeof(why), &d), 0);
    double us = mf_canary_us(d);
    ck_assert(us > 1 && us < 1e6);
    d->ops->free(d);
}
END_TEST

/* clang-format off */
static const struct {
    int n;       /* canaries that the device is slow for; three of them tell it */
    bool thrown; /* what was timed meanwhile */
} slowdowns[] = {
    {1, false},    /* an interrupted canary is none */
    {3, true},
    {6, true},     /* and is so for a while */
    {1000, false}, /* for good: its pace from now on */
};
/* clang-format on */

/* What was timed while the device was slow, as its canary says, is thrown away and taken again: the step is not slow. */
START_TEST(slow_device)
{
    enum { FACTOR = 10000 }; /* no load of this machine looks like that */
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 7);
    struct mf_unit_options options = defaults;
    /* Then none is dropped by its first run, which this machine's load can slow too */
    options.exhaustive = slowdowns[_i].thrown;
    struct mf_session *session = session_of(d, &s, NULL, &options);
    struct mf_step step = planted_step(&s, "stage1", 16, PLANTED_NONE);
    struct mf_unit_result calm = probe(session, &step, NULL, NULL, NULL), r;
    ck_assert_int_eq(calm.status, MF_STATUS_OK);
    ck_assert_double_eq(calm.canary, 1);
    planted_device_slow(d, FACTOR, slowdowns[_i].n);
    r = probe(session, &step, NULL, NULL, NULL);
    ck_assert_msg(r.status == (slowdowns[_i].thrown ? MF_STATUS_OK : MF_STATUS_SLOW), "%s", r.reason);
    ck_assert_double_eq(r.canary, 1);
    ck_assert_msg((r.us < calm.us * 100) == slowdowns[_i].thrown, "%g us, %g when calm", r.us, calm.us);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

/* Of a probe and of a race: as many runs as were asked for come before those that count, behind the verified one. */
START_TEST(warm_up)
{
    enum { WARM_US = 10000 };
    struct mf_device *d = planted_device(CLOCK_HONEST);
    struct mf_shape s = planted_shape(0, 7);
    struct mf_unit_options o = defaults;
    struct planted_sink sink;
    struct mf_probe_step probed = {.id = 1, .step = planted_step(&s, "stage1", 16, PLANTED_NONE)};
    struct pipeline p = pipeline_of(&s, 4, PLANTED_NONE);
    struct mf_race_entry entry = {.id = 10, .forecast_us = WARM_US, .steps = p.steps, .n_steps = p.n};
    o.warmup = _i;
    struct mf_session *session = session_of(d, &s, NULL, &o);
    planted_device_warming(d, 1 + 3);
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_probe(session, &probed, 1, NULL, NULL, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_msg(sink.results[0].status == MF_STATUS_OK, "%s", sink.results[0].reason);
    ck_assert_msg((slowest(&sink) > WARM_US) == (_i < 3), "%g us after %d runs", slowest(&sink), _i);

    planted_sink_init(&sink);
    planted_device_warming(d, 1 + 3);
    ck_assert_int_eq(mf_session_race(session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_msg(sink.results[0].status == MF_STATUS_OK, "%s", sink.results[0].reason);
    ck_assert_msg((slowest(&sink) > WARM_US) == (_i < 3), "%g us after %d runs", slowest(&sink), _i);
    session = mf_session_free(session);
    d->ops->free(d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("session");
    TCase *t = tcase_create("session");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, output_pointers_stay_valid);
    tcase_add_loop_test(t, weights_are_kept, 0, PLANTED_N_FORMATS);
    tcase_add_loop_test(t, references_are_kept, 0, PLANTED_N_FORMATS);
    tcase_add_test(t, serves_the_same_data_only);
    tcase_add_test(t, slow_is_dropped);
    tcase_add_loop_test(t, behind_is_cut_short, 0, MF_ARRAY_LEN(behind));
    tcase_add_test(t, wrong_drops_nobody);
    tcase_add_loop_test(t, warm_up, 0, 5);
    tcase_add_test(t, data_movement_is_not_slow);
    tcase_add_test(t, wrong_before_slow);
    tcase_add_loop_test(t, hang_limit_is_from_the_best, 0, MF_ARRAY_LEN(limits));
    tcase_add_test(t, too_large_a_shape);
    tcase_add_test(t, no_definition);
    tcase_add_test(t, unknown_family_or_step);
    tcase_add_test(t, buffers_lie_in_files);
    tcase_add_test(t, rotations_are_apart_and_equal_work);
    tcase_add_test(t, rotations_keep_to_the_share);
    tcase_add_loop_test(t, cold_mode, 0, PLANTED_N_FORMATS);
    tcase_add_loop_test(t, race_of_pipelines, 0, PLANTED_N_FORMATS);
    tcase_add_test(t, samples_keep_off_the_checked_rotation);
    tcase_add_test(t, a_race_washes_the_last_cache);
    tcase_add_loop_test(t, race_checks_winners_twice, 0, 2);
    tcase_add_test(t, race_that_nobody_finishes);
    tcase_add_test(t, canary_is_a_time);
    tcase_add_loop_test(t, slow_device, 0, MF_ARRAY_LEN(slowdowns));
    suite_add_tcase(s, t);
    return mf_check_main(s);
}
