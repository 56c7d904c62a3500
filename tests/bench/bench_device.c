/* Measures the steps of shapes on one device without a farm, for kernel development. Probes every step with
 * the worker's own gates and timing, then races the best pipelines end to end.
 *
 *   bench_device DEVICE SHAPES.csv [FAMILIES [NAMES]]
 *       DEVICE is as for moefarm-worker --device. NAMES are comma-separated words: only steps with at least
 *       one of them in their name are measured.
 *
 * SHAPES.csv holds rows of untuned_fmoe.csv without a header, in the same column order. If BENCH_TRACE is set
 * in the environment, the program prints each step's name as the step begins. This shows the step at which a
 * device fails. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "common/moe/pipeline_search.h"
#include "kernels/core/data.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"

#define STEPS_MAX      2048
#define RACED_MAX      12
#define RACED_NAME_MAX (MF_PATH_STEPS_MAX * (MF_STEP_NAME_MAX + 1) + 32)
#define KEPT           2 /* pipelines per structure, block_m and weight layout */

struct found {
    struct mf_offer offer; /* must be first */
    struct mf_probe_step steps[STEPS_MAX];
    struct mf_unit_result results[STEPS_MAX];
    size_t n, n_rejected;
    const char *only; /* comma-separated words; NULL: every step */
};

/* Returns true if the name contains one of the comma-separated words. */
static bool holds(const char *name, const char *only)
{
    char word[MF_STEP_NAME_MAX];
    for (const char *at = only; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        (void)snprintf(word, sizeof(word), "%.*s", (int)n, at);
        if (strstr(name, word))
            return true;
        at += n;
    }
    return false;
}

static int take_step(struct mf_offer *o, const struct mf_step *s)
{
    struct found *f = (struct found *)o;
    if (f->n < STEPS_MAX && (!f->only || holds(s->name, f->only))) {
        f->steps[f->n] = (struct mf_probe_step){(int64_t)f->n, *s};
        f->n++;
    }
    return 0;
}

static int take_rejection(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                          const char *format, ...)
{
    (void)family, (void)kernel, (void)rule, (void)format;
    ((struct found *)o)->n_rejected++;
    return 0;
}

/* ---- results ---- */

struct sink {
    struct mf_sink sink; /* must be first */
    struct found *found;
    char (*names)[RACED_NAME_MAX]; /* names of the raced pipelines */
    uint64_t start_ns, phase_ns[MF_PHASE_N_];
    enum mf_phase phase;
};

static void enter_phase(struct mf_sink *base, enum mf_phase phase)
{
    struct sink *s = (struct sink *)base;
    uint64_t now = mf_now_ns();
    s->phase_ns[s->phase] += now - s->start_ns;
    s->start_ns = now;
    s->phase = phase;
}

static int begin(struct mf_sink *base, int64_t id, bool is_pipeline, int64_t limit_ms)
{
    const struct sink *s = (struct sink *)base;
    (void)limit_ms;
    if (getenv("BENCH_TRACE") && !is_pipeline)
        (void)fprintf(stderr, "%s\n", s->found->steps[id].step.name);
    return 0;
}

static int take_result(struct mf_sink *base, const struct mf_unit_result *r)
{
    struct sink *s = (struct sink *)base;
    if (r->is_pipeline)
        printf("  race %-9s %9.2f us  +- %.2f  err %.2g  %s%s%s\n", mf_status_name(r->status), r->us, r->mad,
               r->err, s->names[r->id], r->reason[0] ? "  " : "", r->reason);
    else
        s->found->results[r->id] = *r;
    return 0;
}

static int take_race(struct mf_sink *base, const struct mf_race_outcome *o)
{
    struct sink *s = (struct sink *)base;
    printf("  WINNER %9.2f us  %s\n", o->won.us, s->names[o->won.winner]);
    return 0;
}

/* ---- pipelines of the fastest steps ---- */

static const struct found *sorting;
static int by_time(const void *a, const void *b)
{
    double x = sorting->results[*(const size_t *)a].us, y = sorting->results[*(const size_t *)b].us;
    return (x > y) - (x < y);
}

/* Races the cheapest pipelines, found with the coordinator's search. */
static void race(struct mf_session *session, const struct found *f, const struct mf_device *d,
                 const struct mf_shape *s, struct sink *sink)
{
    static struct mf_path_step right[STEPS_MAX];
    static char names[RACED_MAX][RACED_NAME_MAX];
    static struct mf_step steps[RACED_MAX][MF_PATH_STEPS_MAX];
    struct mf_race_entry raced[RACED_MAX];
    struct mf_path_problem p = {.ops = mf_layer_ops(s),
                                .format = MF_FORMAT_BF16,
                                .steps = right,
                                .gap_us = d->info.gap_us,
                                .keep = KEPT};
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n_paths = 0, n = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->results[i].status == MF_STATUS_OK)
            right[p.n_steps++] = (struct mf_path_step){&f->steps[i].step, f->results[i].us};
    }
    int r = mf_path_find(&p, &paths, &n_paths);
    if (r < 0)
        printf("  no pipelines: %s\n", strerror(-r));
    for (; n < n_paths && n < RACED_MAX; n++) {
        const struct mf_path *path = &paths[n];
        int at = snprintf(names[n], sizeof(names[0]), "(sum %.1f)", path->us);
        for (int i = 0; i < path->n; i++) {
            steps[n][i] = *right[path->steps[i]].step;
            at += snprintf(names[n] + at, sizeof(names[0]) - (size_t)at, " %s", steps[n][i].name);
        }
        raced[n] = (struct mf_race_entry){
            .id = (int64_t)n, .forecast_us = path->us, .steps = steps[n], .n_steps = (size_t)path->n};
    }
    const struct mf_race_plan plan = {
        .stages = {{5, 10}, {10, 6}, {20, 4}}, .n_stages = 3, .fresh = 20, .alpha = 0.05};
    sink->names = names;
    if (n > 0)
        (void)mf_session_race(session, raced, n, &plan, &sink->sink);
}

/* ---- a shape ---- */

static void print_steps(const struct found *f)
{
    static size_t order[STEPS_MAX];
    for (size_t i = 0; i < f->n; i++)
        order[i] = i;
    sorting = f;
    qsort(order, f->n, sizeof(*order), by_time);
    for (size_t i = 0; i < f->n; i++) {
        const struct mf_step *s = &f->steps[order[i]].step;
        const struct mf_unit_result *r = &f->results[order[i]];
        char covers[MF_OPS_TEXT_MAX];
        mf_ops_print(s->covers, covers);
        printf("  %-10s %9.2f us %6.0f GB/s %7.1f TF %-5s err %.2g %s:%s [%s] %s\n",
               mf_status_name(r->status), r->us, s->bytes / r->us / 1e3, s->flops / r->us / 1e6,
               r->mode ? r->mode : "", r->err, s->family, s->name, covers, r->reason);
    }
}

static void bench_shape(struct mf_device *d, const struct mf_shape *s, const char *families, const char *only)
{
    static struct found f;
    char text[MF_SHAPE_TEXT_MAX], why[256];
    const struct mf_unit_options options = {
        .routing = {.kind = MF_ROUTING_UNIFORM}, .err_ratio = 0.05, .seed = 1, .time_cap_ms = 60000};
    struct mf_session *session = NULL;
    struct sink sink = {
        .sink = {begin, take_result, take_race, enter_phase}, .found = &f, .start_ns = mf_now_ns()};
    memset(&f, 0, sizeof(f));
    f.offer = (struct mf_offer){take_step, take_rejection};
    f.only = only;
    mf_shape_print(s, text);
    const struct mf_session_args args = {.device = d, .shape = *s, .options = &options, .sink = &sink.sink};
    if (mf_session_new(&args, why, sizeof(why), &session) < 0) {
        printf("%s: %s\n", text, why);
        return;
    }
    printf("%s\n  data and references in %.3f s, %s\n", text, (double)(mf_now_ns() - sink.start_ns) * 1e-9,
           session->device_data ? "made by the device" : "made by the host");
    int64_t active = session->rotation.active;
    double bytes = mf_layer_min_bytes(s, active), flops = mf_layer_flops(s);
    printf("  active %lld  floor %.1f us (bytes %.1f, flops %.1f)\n", (long long)active,
           fmax(bytes / d->info.mem_read_gbs / 1e3, flops / d->info.peak_gflops_bf16 / 1e3),
           bytes / d->info.mem_read_gbs / 1e3, flops / d->info.peak_gflops_bf16 / 1e3);
    (void)mf_enumerate(&d->info, s, families, &f.offer);
    (void)mf_session_probe(session, f.steps, f.n, NULL, NULL, &sink.sink);
    print_steps(&f);
    race(session, &f, d, s, &sink);
    printf("  phases");
    for (int i = 0; i < MF_PHASE_N_; i++)
        printf(" %s %.2f s", mf_phase_name((enum mf_phase)i), (double)sink.phase_ns[i] * 1e-9);
    printf("\n");
    (void)fflush(stdout);
    mf_session_free(session);
}

int main(int argc, char **argv)
{
    struct mf_device *d = NULL;
    char why[512], line[MF_SHAPE_TEXT_MAX];
    if (argc < 3)
        return 2;
    if (mf_device_open(argv[1], why, sizeof(why), &d) < 0) {
        (void)fprintf(stderr, "%s\n", why);
        return 1;
    }
    printf("%s %s/%d, %s, %s: read %.0f GB/s, bf16 %.0f GFLOP/s, gap %.2f us, llc %.0f MB\n", d->info.model,
           d->info.class.gfx, d->info.class.cu_num, d->info.isa, d->info.compiler, d->info.mem_read_gbs,
           d->info.peak_gflops_bf16, d->info.gap_us, (double)d->info.llc_bytes / 1e6);
    _cleanup_(mf_fclosep) FILE *file = fopen(argv[2], "re");
    while (file && fgets(line, sizeof(line), file)) {
        struct mf_shape s;
        line[strcspn(line, "\n")] = '\0';
        if (mf_shape_parse(line, &s) == 0)
            bench_shape(d, &s, argc > 3 ? argv[3] : NULL, argc > 4 ? argv[4] : NULL);
    }
    mf_device_close(d);
    return 0;
}
