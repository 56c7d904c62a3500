/* Measuring kernels that replay captured launches of a framework (mf_family.captures): how often they
 * capture, work that escapes from a capture, results in memory of the framework, and launches that cannot be
 * captured. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/tensors.h"
#include "measure/session/session_data.h"
#include "support/kernels/planted_session.h"
#include "support/mf_check.h"

/* ---- a framework: it records addresses when it captures, and replays them ---- */

enum behaviour {
    CORRECT,
    ESCAPES,    /* the work runs while the framework captures, and the graph is empty */
    OWN_MEMORY, /* results are in memory of the framework until they are copied */
    NOT_COPIED, /* as OWN_MEMORY, but they are not copied */
    OWN_MEMORY_ESCAPES,
    EAGER, /* nothing is captured */
    EAGER_ESCAPES,
    EAGER_OWN_MEMORY_ESCAPES,
};

static enum behaviour behaviour;

static bool is_eager(void)
{
    return behaviour >= EAGER;
}

static bool has_own_memory(void)
{
    return behaviour == OWN_MEMORY || behaviour == NOT_COPIED || behaviour == OWN_MEMORY_ESCAPES ||
           behaviour == EAGER_OWN_MEMORY_ESCAPES;
}

struct graph {
    const struct mf_kernel *kernel;
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX], gives[MF_STEP_TENSOR_SPECS_MAX];
    void *workspace;
};
static struct graph graphs[256];
static size_t n_graphs;
static struct mf_step step;  /* the step that is measured */
static char memory[1 << 20]; /* results of the framework */

static struct graph graph_of(const struct mf_kernel *kernel, const struct mf_launch *l)
{
    struct graph g = {.kernel = kernel, .workspace = l->workspace};
    memcpy(g.needs, l->needs, sizeof(g.needs));
    memcpy(g.gives, l->gives, sizeof(g.gives));
    return g;
}

static const struct graph *find_graph(const struct mf_kernel *kernel, const struct mf_launch *l)
{
    const struct graph wanted = graph_of(kernel, l);
    for (size_t i = 0; i < n_graphs; i++) {
        if (memcmp(&graphs[i], &wanted, sizeof(wanted)) == 0)
            return &graphs[i];
    }
    return NULL;
}

static int run(struct mf_kernel *kernel, const struct graph *g)
{
    struct mf_tensor_ref own = {.part = {memory}};
    const struct mf_launch l = {
        .needs = g->needs, .gives = has_own_memory() ? &own : g->gives, .workspace = g->workspace};
    return planted_family.launch(kernel, &l);
}

static int prepare(struct mf_kernel *kernel, const struct mf_launch *l)
{
    if (is_eager() || find_graph(kernel, l))
        return 0;
    ck_assert_uint_lt(n_graphs, MF_ARRAY_LEN(graphs));
    graphs[n_graphs++] = graph_of(kernel, l);
    return run(kernel, &graphs[n_graphs - 1]); /* a framework runs once before it captures */
}

static int launch(struct mf_kernel *kernel, const struct mf_launch *l)
{
    const struct graph now = graph_of(kernel, l), *g = is_eager() ? &now : find_graph(kernel, l);
    if (!g)
        return -ENOENT;
    return behaviour == ESCAPES || behaviour == OWN_MEMORY_ESCAPES ? 0 : run(kernel, g);
}

static int finish(struct mf_kernel *kernel, const struct mf_launch *l)
{
    struct mf_part parts[MF_PARTS_MAX];
    const struct mf_shape shape = planted_shape(0, 2);
    (void)kernel;
    ck_assert_int_eq(mf_tensor_spec_parts(&step.gives[0], &shape, parts), 1);
    if (has_own_memory() && behaviour != NOT_COPIED)
        memcpy(l->gives[0].part[0], memory, (size_t)mf_part_bytes(&parts[0]));
    return 0;
}

static const char *eager(const struct mf_kernel *kernel)
{
    ck_assert_ptr_nonnull(kernel);
    return is_eager() ? "the launch waits for a result" : NULL;
}

/* ---- a device with a stream: work on another stream runs before the work of this stream ---- */

static int n_eager;

static int time_eager(struct mf_device *d, mf_launch_fn before, mf_launch_fn launch_fn, void *context,
                      double *ret_us)
{
    (void)d;
    n_eager++;
    *ret_us = 10;
    /* the first delay is too short, so the run is repeated */
    for (int i = 0; i < 2; i++) {
        const bool escapes = behaviour != EAGER && i == 1;
        int r = before(context, 0);
        if (r == 0 && escapes)
            r = launch_fn(context, 0);
        if (r == 0)
            r = before(context, 1);
        if (r == 0 && !escapes)
            r = launch_fn(context, 0);
        if (r < 0)
            return r;
    }
    return 0;
}

static int queue_copy(struct mf_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
    return 0;
}

static int fill(struct mf_device *d, void *at, size_t bytes, uint32_t pattern)
{
    (void)d;
    for (size_t i = 0; i < bytes / sizeof(pattern); i++)
        memcpy((char *)at + i * sizeof(pattern), &pattern, sizeof(pattern));
    return 0;
}

static struct mf_family framework;
static struct mf_device_ops ops;

static uint64_t llc_bytes = 1 << 16; /* several rotations */

static struct mf_unit_result probe(enum behaviour how, double *best_us)
{
    const struct mf_unit_options o = {.err_ratio = 0.1, .seed = 1, .time_cap_ms = 60000};
    static const struct mf_family *const list[] = {&framework};
    static const struct mf_family_set set = {list, 1};
    const struct mf_shape shape = planted_shape(0, 2);
    struct mf_session_args args = {.device = test_device, .shape = shape, .options = &o, .extra = &set};
    char why[MF_REASON_MAX];

    behaviour = how;
    ops = *test_device->ops;
    ops.time_eager = time_eager;
    ops.fill = fill;
    ops.queue_copy = queue_copy;
    test_device->ops = &ops;
    test_device->info.llc_bytes = llc_bytes;
    framework = planted_family;
    framework.captures = true;
    framework.prepare = prepare;
    framework.launch = launch;
    framework.finish = finish;
    framework.eager = eager;
    ck_assert_msg(mf_session_new(&args, why, sizeof(why), &test_session) == 0, "%s", why);
    step = planted_step(&shape, "stage2", 16, PLANTED_NONE);
    return planted_probe_against(&step, best_us, NULL);
}

/* Inputs of all rotations have one address, so a kernel captures once per output buffer. */
MF_TEST(captures_once_per_output)
{
    struct mf_unit_result r = probe(CORRECT, NULL);

    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    ck_assert_int_eq(r.verified, 2);
    ck_assert_str_eq(r.mode, "cold");
    ck_assert_uint_eq(n_graphs, 2);
}

/* Inputs that are restored after a wrong result get new addresses, but the kernel does not see them. */
MF_TEST(captures_no_address_of_the_session)
{
    llc_bytes = 1 << 10; /* one rotation */
    struct mf_unit_result r = probe(CORRECT, NULL);

    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    for (int i = 0; i < step.n_needs; i++) {
        struct mf_tensor_ref input;
        if (mf_tensor_spec_is_weight(&step.needs[i]))
            continue;
        ck_assert_int_eq(mf_session_input(test_session, &step.needs[i], 0, &input, NULL), 0);
        for (size_t g = 0; g < n_graphs; g++)
            ck_assert_ptr_ne(graphs[g].needs[i].part[0], input.part[0]);
    }
}

static const struct {
    enum behaviour behaviour;
    enum mf_status status;
    const char *reason, *mode;
} cases[] = {
    {ESCAPES, MF_STATUS_WRONG, "unwritten: ", ""},
    {OWN_MEMORY, MF_STATUS_OK, "", "cold"},
    {NOT_COPIED, MF_STATUS_WRONG, "unwritten: ", ""},
    {OWN_MEMORY_ESCAPES, MF_STATUS_WRONG, "not finite: ", ""},
    {EAGER, MF_STATUS_OK, "timed eagerly, so not ranked: the launch waits for a result", "eager"},
    {EAGER_ESCAPES, MF_STATUS_WRONG, "unwritten: ", ""},
    {EAGER_OWN_MEMORY_ESCAPES, MF_STATUS_WRONG, "not finite: ", ""},
};

MF_TEST(framework_is_judged, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_unit_result r = probe(cases[_i].behaviour, NULL);

    ck_assert_msg(r.status == cases[_i].status, "%s: %s", mf_status_name(r.status), r.reason);
    ck_assert_msg(strstr(r.reason, cases[_i].reason) != NULL, "%s", r.reason);
    ck_assert_str_eq(r.mode, cases[_i].mode);
    ck_assert_int_eq(n_eager > 0, is_eager());
}

/* Times of graphs do not prune a step that is timed eagerly. */
MF_TEST(eager_times_are_not_compared, .rows = 2)
{
    double best_us = 1e-6;
    struct mf_unit_result r = probe(_i ? EAGER : CORRECT, &best_us);

    ck_assert_msg(r.status == (_i ? MF_STATUS_OK : MF_STATUS_SLOW), "%s", r.reason);
}

static const struct {
    const char *family, *name, *reason;
} not_opened[] = {
    {"missing", "stage2.16", "this runner has no family missing"},
    {"planted", "stage2.backwards", "the family failed to open a step that it offered"},
};

/* A step that the family cannot open has no kernel, so the session must not ask the family for its mode. */
MF_TEST(unknown_family_or_step, .rows = MF_ARRAY_LEN(not_opened))
{
    (void)probe(CORRECT, NULL);
    (void)mf_copy(step.family, sizeof(step.family), not_opened[_i].family);
    (void)mf_copy(step.name, sizeof(step.name), not_opened[_i].name);
    struct mf_unit_result r = planted_probe(&step);

    ck_assert_int_eq(r.status, MF_STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(r.reason, not_opened[_i].reason) != NULL, "%s", r.reason);
    ck_assert_str_eq(r.mode, "");
}

/* ---- races ---- */

static const struct {
    enum behaviour behaviour;
    enum mf_status status;
    const char *reason;
} races[] = {
    {CORRECT, MF_STATUS_OK, ""},
    {ESCAPES, MF_STATUS_WRONG, "unwritten: "},
    {EAGER, MF_STATUS_UNSUPPORTED,
     "planted:sort.16 cannot be captured, and eager times are not compared: the launch waits for a result"},
};

/* Each step captures once per output, with the inputs that the step before it has written. */
MF_TEST(race_of_a_framework, .rows = MF_ARRAY_LEN(races))
{
    static const struct mf_race_plan plan = {.stages = {{8, 3}}, .n_stages = 1, .fresh = 5, .alpha = 0.05};
    static const char *const kinds[] = {"sort", "stage1", "stage2", "combine"};
    const struct mf_shape shape = planted_shape(0, 2);
    struct mf_step steps[MF_ARRAY_LEN(kinds)];
    struct planted_sink sink;

    (void)probe(races[_i].behaviour, NULL);
    n_graphs = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(steps); i++)
        steps[i] = planted_step(&shape, kinds[i], i < 3 ? 16 : 0, PLANTED_NONE);
    const struct mf_race_entry entry = {
        .id = 10, .forecast_us = 100, .steps = steps, .n_steps = MF_ARRAY_LEN(steps)};
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_race(test_session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_msg(sink.results[0].status == races[_i].status, "%s", sink.results[0].reason);
    ck_assert_msg(strstr(sink.results[0].reason, races[_i].reason) != NULL, "%s", sink.results[0].reason);
    if (races[_i].behaviour == CORRECT)
        ck_assert_uint_eq(n_graphs, 3 + 2);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = planted_setup, .teardown = planted_teardown});
}
