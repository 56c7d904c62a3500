/* Compares verification on the device with verification on the host for the same bytes. Both find the same
 * statistics for each row and return the same verdict, for correct and wrong outputs. This also holds if the
 * device has no memory for the reference. Runs on the emulator or on the device that MOEFARM_TEST_DEVICE
 * names. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "emulator/device_emulated.h"
#include "kernels/core/quant.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"
#include "measure/verify/verify.h"
#include "measure/verify/verify_on_device.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

static const struct mf_unit_options options = {.err_ratio = 0.05, .seed = 7, .time_cap_ms = 60000};

/* ---- an output ---- */

enum plant { NOTHING, A_NAN, A_FIRST_NAN, AN_INFINITY, A_HOLE, A_TAIL, A_ROW, MANY, AN_EXPERT, N_PLANTS };

struct output {
    struct mf_session *session;
    struct mf_guarded *run[2];
    struct mf_verify_input v;
    struct mf_reference without_z; /* the session's reference before z was computed */
};

static uint16_t *row_of(const struct mf_guarded *g, int64_t p)
{
    return (uint16_t *)g->ref.part[0] + p * g->parts[0].cols;
}

/* Writes the reference to every row; padding is unchanged. */
static void fill(const struct output *o, int run)
{
    const struct mf_guarded *g = o->run[run];
    const size_t cols = (size_t)g->parts[0].cols;
    float row[1024];
    for (int64_t p = 0; p < g->parts[0].rows; p++) {
        float factor;
        int64_t source = o->v.source ? o->v.source[p] : p;
        if (source < 0)
            continue;
        const float *should = mf_reference_row(o->v.data, o->v.ref, &g->tensor_spec, source, &factor);
        for (size_t i = 0; i < cols; i++)
            row[i] = g->tensor_spec.zeroed ? 0 : should[i] * factor;
        mf_bf16_from_floats(row, cols, row_of(g, p));
    }
}

/* Returns the last row that is not padding. */
static int64_t last_row(const struct output *o)
{
    int64_t p = o->run[0]->parts[0].rows - 1;
    while (o->v.source && o->v.source[p] < 0)
        p--;
    return p;
}

static void plant(const struct output *o, int run, enum plant what)
{
    const struct mf_guarded *g = o->run[run];
    const int64_t cols = g->parts[0].cols, last = last_row(o);
    bool is_value;
    const uint16_t poison = (uint16_t)mf_part_poison(&g->tensor_spec, 0, &is_value);
    uint16_t *row = row_of(g, last);
    switch (what) {
    case A_NAN:
        row[5] = row[9] = 0x7fc0;
        break;
    case A_FIRST_NAN:
        row[0] = row[7] = 0x7fc0;
        break;
    case AN_INFINITY:
        row[cols - 1] = 0xff80;
        break;
    case A_HOLE:
        row[3] = row[77] = poison;
        break;
    case A_TAIL:
        for (int64_t i = cols / 2; i < cols; i++)
            row[i] = poison;
        break;
    case A_ROW:
        for (int64_t i = 0; i < cols; i++)
            row[i] ^= 0x8000;
        break;
    case MANY: /* some elements of each row, so that the mismatch ratio is exceeded first */
        for (int64_t i = 0; i < g->parts[0].rows * cols; i += 9)
            row_of(g, 0)[i] = mf_bf16_from_float(mf_bf16_to_float(row_of(g, 0)[i]) * 1.5f + 0.05f);
        break;
    case AN_EXPERT: /* every row of one expert */
        for (int64_t i = 0; i < g->parts[0].rows * cols; i++)
            row_of(g, 0)[i] = mf_bf16_from_float(mf_bf16_to_float(row_of(g, 0)[i]) * 1.03f);
        break;
    case NOTHING:
    case N_PLANTS:
        break;
    }
}

/* share: if true, the layer uses expert parallelism, and rows of experts on other ranks are padding. */
static const struct {
    const char *gfx, *tensor_spec;
    bool share;
} cases[] = {
    {"sm_89", "z/bf16/none/slot", false},         {"sm_89", "z/bf16/none/sorted.16", false},
    {"sm_89", "zw/bf16/none/sorted.16", false},   {"sm_89", "y/bf16/none/token", false},
    {"sm_89", "h/bf16/none/sorted.16", false},    {"sm_89", "g/bf16/none/sorted.16", false},
    {"sm_89", "gw/bf16/none/sorted.16", false},   {"sm_89", "zw/bf16/none/slot", true},
    {"gfx942", "zw/bf16/none/sorted.16", false},  {"gfx942", "y/bf16/none/token", false},
    {"sm_89", "y/bf16/none/token+zeroed", false},
};

static struct mf_device *device;

/* Creates a session with an output on the device that is correct in both runs. Returns false if the case is
 * for another vendor than the device in MOEFARM_TEST_DEVICE. */
static bool output_init(struct output *o, int i)
{
    struct mf_shape s;
    struct mf_tensor_spec a;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(
        mf_shape_parse("21,272,144,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                       "QuantType.No,1,0",
                       &s),
        0);
    if (cases[i].share) {
        s.ep_experts = 8;
        s.ep_first = 2;
    }
    int r = mf_device_emulated_or_named(cases[i].gfx, 2, 1, &device);
    ck_assert(r == 0 || r == -ENODEV);
    if (r < 0)
        return false;
    const struct mf_session_args args = {.device = device, .shape = s, .options = &options};
    ck_assert_msg(mf_session_new(&args, why, sizeof(why), &o->session) == 0, "%s", why);
    ck_assert_int_eq(mf_tensor_spec_parse(cases[i].tensor_spec, &a), 0);
    o->without_z = o->session->ref;
    ck_assert_ptr_null(o->without_z.z);
    ck_assert_int_eq(mf_session_z(o->session), 0);
    ck_assert_int_eq(mf_session_output(o->session, &a, o->run), 0);
    o->v = (struct mf_verify_input){.data = &o->session->data,
                                    .ref = &o->session->ref,
                                    .out = o->run[0],
                                    .covers = MF_OP_BIT(MF_OP_GEMM1),
                                    .err_ratio = options.err_ratio};
    ck_assert_int_eq(mf_session_source(o->session, &a, &o->v.source), 0);
    for (int run = 0; run < 2; run++) {
        fill(o, run);
        ck_assert_int_eq(mf_region_push(&o->run[run]->region), 0);
    }
    return true;
}

static void output_release(struct output *o)
{
    (void)mf_session_free(o->session);
    (void)mf_device_close(device);
}

/* ---- verification on the device and on the host ---- */

struct outcome {
    int r;
    struct mf_verdict verdict;
};

static struct outcome verify_on_device(const struct output *o, int run)
{
    struct mf_verify_input v = o->v;
    struct outcome s;
    v.out = o->run[run];
    ck_assert(mf_verify_runs_on_device(&v));
    s.r = mf_verify(&v, &s.verdict);
    ck_assert_msg(s.r >= 0, "%d: %s", s.r, mf_device_emulated_why(device));
    return s;
}

/* Verifies on the host after a pull, with device verification disabled. */
static struct outcome verify_on_host(const struct output *o, int run)
{
    struct mf_verify_input v = o->v;
    struct mf_device_data *device_data = o->run[run]->device_data;
    struct outcome s;
    v.out = o->run[run];
    v.out->device_data = NULL;
    s.r = mf_verify(&v, &s.verdict);
    v.out->device_data = device_data;
    return s;
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *what)
{
    ck_assert_msg(a->r == b->r && strcmp(a->verdict.reason, b->verdict.reason) == 0,
                  "%s: device %d %s\nhost %d %s", what, a->r, a->verdict.reason, b->r, b->verdict.reason);
    if (a->r == 0)
        ck_assert_msg(fabs(a->verdict.err - b->verdict.err) <= 1e-9 &&
                          fabs(a->verdict.row_err - b->verdict.row_err) <=
                              1e-5 * b->verdict.row_err + 1e-12 &&
                          fabs(a->verdict.row_limit - b->verdict.row_limit) <= 1e-6 * b->verdict.row_limit,
                      "%s: device %g %g %g, host %g %g %g", what, a->verdict.err, a->verdict.row_err,
                      a->verdict.row_limit, b->verdict.err, b->verdict.row_err, b->verdict.row_limit);
}

/* Overwrites the host copy of an output. If the copy changes later, the host has pulled the output. */
static void overwrite_host_copy(const struct mf_guarded *g)
{
    memset(g->ref.part[0], 0x11, (size_t)mf_part_bytes(&g->parts[0]));
}

static bool is_near(double a, double b)
{
    return (isnan(a) && isnan(b)) || (isinf(a) && isinf(b)) || fabs(a - b) <= 1e-5 * fabs(b);
}

/* Compares the statistics of each row from the device, which uses its own z, with those from the host after a
 * pull. */
static void assert_same_rows(const struct output *o, const char *what)
{
    const struct mf_guarded *g = o->run[0];
    struct mf_verify_input own = o->v;
    float scratch[2 * 1024];
    struct mf_verify_row *rows = calloc((size_t)g->parts[0].rows, sizeof(*rows));
    ck_assert_ptr_nonnull(rows);
    overwrite_host_copy(g);
    own.ref = &o->without_z;
    ck_assert_int_eq(mf_verify_rows_on_device(&own, rows), 0);
    ck_assert_uint_eq(row_of(g, 0)[0], 0x1111);
    ck_assert_int_eq(mf_region_pull(&g->region), 0);
    for (int64_t p = 0; p < g->parts[0].rows; p++) {
        struct mf_verify_row a = rows[p], b = {.source = o->v.source ? o->v.source[p] : p};
        ck_assert_int_eq(a.source, b.source);
        if (b.source < 0)
            continue;
        mf_verify_row_inspect(&o->v, p, g->parts[0].cols, scratch, &b);
        ck_assert_msg(
            a.unwritten == b.unwritten && a.unwritten_at == b.unwritten_at && a.bad == b.bad &&
                a.bad_at == b.bad_at && a.mismatches == b.mismatches && is_near(a.difference, b.difference) &&
                is_near(a.norm, b.norm) && is_near(a.size, b.size),
            "%s, row %d: unwritten %u %u, at %u %u; bad %u %u, at %u %u; off %u %u; %g %g, %g %g, %g %g",
            what, (int)p, a.unwritten, b.unwritten, a.unwritten_at, b.unwritten_at, a.bad, b.bad, a.bad_at,
            b.bad_at, a.mismatches, b.mismatches, a.difference, b.difference, a.norm, b.norm, a.size, b.size);
    }
    free(rows);
}

MF_TEST(device_and_host_agree, .rows = MF_ARRAY_LEN(cases))
{
    if (!mf_draw(_i, 2))
        return;
    struct output o;
    if (!output_init(&o, _i))
        return;
    for (int i = 0; i < N_PLANTS; i++) {
        char what[64];
        mf_format(what, sizeof(what), "%s, plant %d", cases[_i].tensor_spec, i);
        fill(&o, 0);
        plant(&o, 0, (enum plant)i);
        ck_assert_int_eq(mf_region_push(&o.run[0]->region), 0);
        assert_same_rows(&o, what);
        overwrite_host_copy(o.run[0]);
        const struct outcome device_says = verify_on_device(&o, 0);
        ck_assert((row_of(o.run[0], last_row(&o))[0] == 0x1111) == (device_says.r == 0));
        const struct outcome host_says = verify_on_host(&o, 0);
        assert_same(&device_says, &host_says, what);
        /* negated or scaled zeros are still zeros */
        bool right = i == NOTHING || (o.v.out->tensor_spec.zeroed && (i == A_ROW || i == AN_EXPERT));
        ck_assert_msg((device_says.r == 0) == right, "%s: %s", what, device_says.verdict.reason);
    }
    output_release(&o);
}

/* Accumulated outputs are zeroed and not poisoned, so bits equal to the poison are ordinary values. */
MF_TEST(accumulated_output_has_no_poison)
{
    struct output o;
    if (!output_init(&o, 3))
        return;
    o.v.accumulates = true;
    plant(&o, 0, A_HOLE);
    ck_assert_int_eq(mf_region_push(&o.run[0]->region), 0);
    assert_same_rows(&o, "sums");
    const struct outcome device_says = verify_on_device(&o, 0), host_says = verify_on_host(&o, 0);
    assert_same(&device_says, &host_says, "sums");
    ck_assert_msg(strncmp(device_says.verdict.reason, "not finite: ", 12) == 0, "%s",
                  device_says.verdict.reason);
    output_release(&o);
}

/* Leaves differences of every row, padding included, in the scratch memory of device_data. */
static void leave_differences(struct output *o)
{
    struct mf_verify_input all = o->v;
    struct mf_verdict verdict;
    size_t n = (size_t)(o->run[1]->parts[0].rows * o->run[1]->parts[0].cols);
    uint16_t *kept = malloc(n * 2), *rows = row_of(o->run[1], 0);
    memcpy(kept, rows, n * 2);
    for (size_t i = 0; i < n; i++)
        rows[i] ^= 1;
    ck_assert_int_eq(mf_region_push(&o->run[1]->region), 0);
    all.source = NULL;
    ck_assert_int_eq(mf_verify_stable(&all, o->run[1], 0, &verdict), 1);
    memcpy(rows, kept, n * 2);
    ck_assert_int_eq(mf_region_push(&o->run[1]->region), 0);
    free(kept);
}

/* The second run returns some rows multiplied by `factor`, for a step that declares `tolerance`. */
static const struct {
    float factor;
    double tolerance;
    int want;
} seconds[] = {{1, 0, 0}, {1.01f, 0, 1}, {1.01f, 0.02, 0}, {1.1f, 0.02, 1}};

MF_TEST(second_run_agrees, .rows = MF_ARRAY_LEN(cases) - 1)
{
    struct output o;
    struct outcome device_says, host_says;
    if (!output_init(&o, _i))
        return;
    for (size_t i = 0; i < MF_ARRAY_LEN(seconds); i++) {
        fill(&o, 1);
        for (int64_t p = last_row(&o); p >= last_row(&o) - 3 && p >= 0; p -= 3) {
            for (int64_t c = 0; c < o.run[1]->parts[0].cols; c++)
                row_of(o.run[1], p)[c] =
                    mf_bf16_from_float(mf_bf16_to_float(row_of(o.run[1], p)[c]) * seconds[i].factor);
        }
        ck_assert_int_eq(mf_region_push(&o.run[1]->region), 0);
        struct mf_device_data *device_data = o.run[0]->device_data;
        device_says = host_says = (struct outcome){.verdict.reason = ""};
        o.run[0]->device_data = NULL;
        host_says.r = mf_verify_stable(&o.v, o.run[1], seconds[i].tolerance, &host_says.verdict);
        o.run[0]->device_data = device_data;
        leave_differences(&o);
        overwrite_host_copy(o.run[1]);
        device_says.r = mf_verify_stable(&o.v, o.run[1], seconds[i].tolerance, &device_says.verdict);
        ck_assert_int_eq(device_says.r, seconds[i].want);
        assert_same(&device_says, &host_says, cases[_i].tensor_spec);
    }
    output_release(&o);
}

/* ---- failing allocations ---- */

static void *(*alloc)(struct mf_device *d, size_t bytes);
static int until_full;

static void *alloc_until_full(struct mf_device *d, size_t bytes)
{
    return until_full-- == 0 ? NULL : alloc(d, bytes);
}

/* One allocation after another fails: for the copy of the reference, for the buffers of the first
 * verification, and for those of the second verification. */
MF_TEST(allocation_failure_falls_back_to_host)
{
    struct output o;
    if (!output_init(&o, 2))
        return;
    struct mf_device_ops ops = *device->ops;
    alloc = ops.alloc;
    ops.alloc = alloc_until_full;
    device->ops = &ops;
    for (int i = 0; i < 2; i++) {
        overwrite_host_copy(o.run[0]);
        until_full = i;
        struct outcome s = verify_on_device(&o, 0);
        ck_assert_msg(s.r == 0, "%s", s.verdict.reason);
        ck_assert_int_lt(until_full, 0);
        ck_assert_uint_ne(row_of(o.run[0], last_row(&o))[0], 0x1111);
    }
    overwrite_host_copy(o.run[0]);
    overwrite_host_copy(o.run[1]);
    until_full = 0;
    struct outcome s = {.r = mf_verify_stable(&o.v, o.run[1], 0, &s.verdict)};
    ck_assert_int_eq(s.r, 0);
    ck_assert_uint_ne(row_of(o.run[1], last_row(&o))[0], 0x1111);
    output_release(&o);
}

static size_t largest;
static void *largest_at;

static void *alloc_and_note(struct mf_device *d, size_t bytes)
{
    void *p = alloc(d, bytes);
    if (p && bytes > largest) {
        largest = bytes;
        largest_at = p;
    }
    return p;
}

/* A kernel may overwrite the device's copy of the reference. A correct output must not be rejected for this
 * reason, and the copy is created again. */
MF_TEST(overwritten_reference_copy_recreated)
{
    struct output o;
    if (!output_init(&o, 2))
        return;
    struct mf_device_ops ops = *device->ops;
    alloc = ops.alloc;
    ops.alloc = alloc_and_note;
    device->ops = &ops;
    struct outcome s = verify_on_device(&o, 0);
    ck_assert_int_eq(s.r, 0);
    ck_assert_uint_ge(largest, (size_t)(o.v.data->shape.token * o.v.data->shape.topk * 272) * sizeof(float));
    void *garbage = malloc(largest);
    ck_assert_ptr_nonnull(garbage);
    memset(garbage, 0x42, largest);
    ck_assert_int_eq(device->ops->copy(device, largest_at, garbage, largest), 0);
    free(garbage);
    for (int i = 0; i < 2; i++) {
        overwrite_host_copy(o.run[0]);
        s = verify_on_device(&o, 0);
        ck_assert_msg(s.r == 0, "%s", s.verdict.reason);
        ck_assert((row_of(o.run[0], last_row(&o))[0] == 0x1111) == (i == 1));
    }
    output_release(&o);
}

/* A reference that exceeds its share of device memory stays on the host. */
MF_TEST(large_reference_stays_on_host)
{
    struct output o;
    if (!output_init(&o, 0))
        return;
    device->info.memory_bytes = 1 << 16;
    overwrite_host_copy(o.run[0]);
    struct outcome s = verify_on_device(&o, 0);
    ck_assert_msg(s.r == 0, "%s", s.verdict.reason);
    ck_assert_uint_ne(row_of(o.run[0], last_row(&o))[0], 0x1111);
    output_release(&o);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
