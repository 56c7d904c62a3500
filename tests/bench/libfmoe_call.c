/* Runs the rows of a table with libfmoe (fmoe_run in fmoe/fmoe.h) on a session's data. Calls are interleaved
 * with runs of the pipeline alone, as in a race. bench_libfmoe.py starts this program.
 *
 *     libfmoe_call TABLE ROUNDS
 *
 * Prints one line per row: its key; the times in µs of the table, the pipeline and the call; and the
 * confidence interval of the relative time that the call adds to the pipeline (low, middle, high). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_rows.h"
#include "common/base/cleanup.h"
#include "common/base/paired.h"
#include "common/base/text.h"
#include "fmoe/fmoe.h"
#include "kernels/core/philox.h"
#include "measure/race/entrant.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"
#include "support/farm/serving_model.h"

#define ROUNDS_MAX 1000
#define SEED       20250101u

struct call {
    struct fmoe_layer *layer;
    struct fmoe_call args;
};

static int launch(void *context, int index)
{
    struct call *c = context;
    (void)index;
    return fmoe_run(c->layer, &c->args);
}

static void take_parts(const void *to[3], const struct mf_tensor_ref *from)
{
    for (int i = 0; i < 3; i++)
        to[i] = from->part[i];
}

/* Sets the call's arguments to the buffers that the entrant would bind. */
static int bind(struct call *c, struct mf_entrant *e, int rotation)
{
    struct mf_session *s = e->buffers->session;
    const struct mf_tensor_spec x = {.tensor = MF_TENSOR_X, .format = MF_FORMAT_BF16, .order = "token"};
    const struct mf_tensor_spec topk = {
        .tensor = MF_TENSOR_TOPK, .format = MF_FORMAT_INDEX, .order = "token"};
    const struct mf_tensor_spec calib = {
        .tensor = MF_TENSOR_CALIB, .format = MF_FORMAT_F32, .order = "token"};
    struct mf_tensor_ref rx, rtopk, rcalib;
    int r = mf_session_input(s, &x, rotation, &rx, NULL);

    if (r == 0)
        r = mf_session_input(s, &topk, rotation, &rtopk, NULL);
    if (r == 0)
        r = mf_session_input(s, &calib, 0, &rcalib, NULL);
    if (r < 0)
        return r;
    c->args = (struct fmoe_call){
        .tokens = s->shape.token,
        .x = rx.part[0],
        .ids = rtopk.part[0],
        .weights = rtopk.part[1],
        .weights_type = FMOE_FLOAT32,
        .calib = rcalib.part[0],
        .y = e->buffers->y[0]->launch_ref.part[0],
        .workspace = mf_region_launch_start(&s->arena),
        .workspace_bytes = fmoe_workspace_bytes(c->layer),
    };
    take_parts(c->args.w1, &e->measured.weights[0]->launch_ref);
    take_parts(c->args.w2, &e->measured.weights[1]->launch_ref);
    return 0;
}

/* Like mf_entrant_sample, but times the call. */
static int sample_call(struct call *c, struct mf_entrant *e, double *ret_us)
{
    struct mf_measured m = e->measured;
    struct mf_race_buffers *buffers = e->buffers;
    int r;

    buffers->cursor = (buffers->cursor + 1) % m.n_rotations;
    buffers->run = 0;
    m.launch = launch;
    m.prepare = NULL;
    m.context = c;
    r = bind(c, e, buffers->cursor);
    return r < 0 ? r : mf_measure_run(&m, buffers->cursor, ret_us, NULL);
}

static int fail(const char *what, const char *why)
{
    (void)fprintf(stderr, "libfmoe_call: %s: %s\n", what, why);
    return -EIO;
}

static int run_rounds(struct call *c, struct mf_entrant *e, size_t n)
{
    static double pipeline[ROUNDS_MAX], call[ROUNDS_MAX], scratch[ROUNDS_MAX];
    struct mf_interval change;
    char reason[MF_REASON_MAX] = "";

    for (size_t i = 0; i < n; i++) {
        bool call_first = mf_philox(SEED, i, 0).v[0] & 1;
        if (call_first && sample_call(c, e, &call[i]) < 0)
            return fail("fmoe_run", "the call failed");
        if (mf_entrant_sample(e, &pipeline[i], reason) != MF_STATUS_OK)
            return fail("pipeline", reason);
        if (!call_first && sample_call(c, e, &call[i]) < 0)
            return fail("fmoe_run", "the call failed");
    }
    if (mf_paired_interval(pipeline, call, n, MF_PAIRED_CONFIDENCE, scratch, &change) < 0)
        return fail("timing", "a sample is not above zero");
    printf("%.3f %.3f %.5f %.5f %.5f\n", mf_median(pipeline, n), mf_median(call, n), change.low, change.mid,
           change.high);
    return 0;
}

static int run_row(struct mf_bench *b, struct fmoe *f, const struct mf_bench_row *row, size_t n)
{
    struct mf_session *session = NULL;
    struct mf_race_buffers buffers;
    struct mf_entrant e;
    struct call c = {0};
    struct fmoe_error error = {""};
    struct fmoe_layer_model model = serving_model(&row->shape, row->shape.token);
    char reason[MF_REASON_MAX] = "", key[MF_SHAPE_TEXT_MAX];
    int r = -EIO;

    mf_shape_print(&row->shape, key);
    if (row->refused)
        return fail(key, row->refused);
    if (mf_bench_session(row, b, &session) != 0)
        return -EIO;
    if (mf_race_buffers_init(&buffers, session) < 0 ||
        mf_entrant_init(&e, &buffers, row->pipeline, reason) != MF_STATUS_OK ||
        mf_entrant_verify(&e, reason) != MF_STATUS_OK)
        (void)fail(key, reason);
    else if (fmoe_layer_open(f, &model, &error, &c.layer) < 0)
        (void)fail(key, error.text);
    else if (mf_session_reserve(session, &session->arena, fmoe_workspace_bytes(c.layer) + 64) < 0)
        (void)fail(key, "out of memory");
    else {
        printf("%s %.3f ", key, row->us);
        r = run_rounds(&c, &e, n);
    }
    fmoe_layer_close(c.layer);
    mf_session_free(session);
    return r;
}

int main(int argc, char **argv)
{
    const struct mf_bench_options options = MF_BENCH_DEFAULTS;
    struct mf_bench b;
    struct mf_bench_rows rows;
    struct fmoe *f = NULL;
    struct fmoe_error error = {""};
    const char *const tables[] = {argc > 1 ? argv[1] : ""};
    int64_t n;
    int r = 0;

    if (argc != 3 || mf_parse_i64(argv[2], 8, ROUNDS_MAX, &n) < 0)
        return fail("usage", "libfmoe_call TABLE ROUNDS (8 to 1000)") != 0;
    if (mf_bench_open(&b, &options, NULL) != 0 || mf_bench_rows_open(&rows, &b, argv[1]) != 0)
        return EXIT_FAILURE;
    if (fmoe_open("cpu:0", tables, 1, &error, &f) < 0)
        r = fail(argv[1], error.text);
    for (size_t i = 0; i < rows.n && r == 0; i++)
        r = run_row(&b, f, &rows.items[i], (size_t)n);
    fmoe_close(f);
    mf_bench_rows_close(&rows);
    mf_bench_close(&b);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
