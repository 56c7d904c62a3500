#include "measure/race/measure.h"

#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/moe/device_peak.h"
#include "kernels/core/vector.h"
#include "kernels/cpu/device_cpu.h"

#define SHORT_US 50.0 /* steps shorter than this (in microseconds) get MF_MEASURE_SAMPLES samples */
/* longer steps get TOTAL_US / first_us samples, but at least SAMPLES_MIN and at most SAMPLES_MAX */
#define TOTAL_US     8000.0
#define SAMPLES_MIN  3
#define SAMPLES_MAX  5
#define FLOPS_MARGIN 1.05
#define BYTES_MARGIN 1.1
#define READ_MS      60
#define CEILINGS_MAX 8 /* maximum number of times that a session measures its ceilings again */

static double weight_bytes(const struct mf_session *s, const struct mf_tensor_spec *a)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &s->shape, parts);
    double bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += (double)mf_part_bytes(&parts[i]);
    return bytes / s->shape.expert * (double)s->rotation.active;
}

void mf_measured_init(struct mf_measured *m)
{
    m->bytes = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(m->weights); i++) {
        if (m->weights[i])
            m->bytes += weight_bytes(m->session, &m->weights[i]->tensor_spec);
    }
    m->n_rotations = mf_rotation_count(&m->session->rotation, m->bytes,
                                       (double)m->session->device->info.llc_bytes, &m->cold);
}

static bool is_cold(const struct mf_measured *m, int rotation)
{
    double llc = (double)m->session->device->info.llc_bytes;
    for (size_t i = 0; i < MF_ARRAY_LEN(m->weights); i++) {
        const struct mf_session_weight *w = m->weights[i];
        if (w && w->used[rotation] >= 0 && m->session->traffic - w->used[rotation] < 2 * llc &&
            m->bytes < 4 * llc)
            return false;
    }
    return true;
}

static int evict_caches(struct mf_session *s)
{
    double bytes = 0;
    int r = s->device->ops->evict_caches ? s->device->ops->evict_caches(s->device, &bytes) : 0;
    s->traffic += bytes;
    return r;
}

static int prepare(struct mf_measured *m, int rotation)
{
    m->rotation = rotation;
    m->session->device->open_error[0] = '\0';
    return m->prepare ? m->prepare(m->context, 0) : 0;
}

int mf_measure_prepare(struct mf_measured *m, int rotation)
{
    const struct mf_device_ops *ops = m->session->device->ops;
    int r = prepare(m, rotation);
    int waited = ops->sync ? ops->sync(m->session->device) : 0;
    return r < 0 ? r : waited;
}

static const char *why_eager(const struct mf_measured *m)
{
    return m->eager && m->session->device->ops->time_eager ? m->eager(m->context) : NULL;
}

static int time_run(struct mf_measured *m, double *ret_us)
{
    struct mf_device *d = m->session->device;
    int r = why_eager(m) ? d->ops->time_eager(d, m->poison, m->launch, m->context, ret_us)
                         : d->ops->time(d, m->launch, m->context, 1, ret_us);
    return r >= 0 && m->finish ? m->finish(m->context, 0) : r;
}

int mf_measure_run(struct mf_measured *m, int rotation, double *ret_us, bool *ret_cold)
{
    int r = prepare(m, rotation);
    if (r >= 0 && m->evicts_caches)
        r = evict_caches(m->session);
    bool cold = is_cold(m, rotation);
    if (r >= 0)
        r = time_run(m, ret_us);
    m->session->traffic += m->bytes;
    for (size_t i = 0; i < MF_ARRAY_LEN(m->weights); i++) {
        if (m->weights[i])
            m->weights[i]->used[rotation] = m->session->traffic;
    }
    if (ret_cold)
        *ret_cold = cold;
    return r;
}

int mf_measure_sample(struct mf_measured *m, int rotation, struct mf_samples *samples)
{
    double us;
    bool cold;
    int r = mf_measure_run(m, rotation, &us, &cold);
    if (r < 0 || samples->n_all == MF_ARRAY_LEN(samples->all))
        return r;
    samples->all[samples->n_all++] = us;
    if (cold)
        samples->cold[samples->n_cold++] = us;
    return r;
}

int mf_measure_next(struct mf_measured *m)
{
    struct mf_session_weight *w = m->weights[0] ? m->weights[0] : m->weights[1];
    if (!w || m->n_rotations == 1)
        return 0;
    w->cursor = (w->cursor + 1) % m->n_rotations;
    if (w->cursor == 0 && m->n_rotations > 2)
        w->cursor = 1;
    return w->cursor;
}

int mf_measure_count(double first_us, double budget_us)
{
    if (first_us < SHORT_US || first_us * MF_MEASURE_SAMPLES <= budget_us)
        return MF_MEASURE_SAMPLES;
    return (int)fmin(fmax(TOTAL_US / first_us, SAMPLES_MIN), SAMPLES_MAX);
}

int mf_measure_missing(const struct mf_measured *m, const struct mf_samples *s)
{
    return m->cold && s->n_cold < SAMPLES_MIN && s->n_cold < s->n_all ? SAMPLES_MIN - (int)s->n_cold : 0;
}

const double *mf_measure_samples(const struct mf_measured *m, const struct mf_samples *s, size_t *ret_n,
                                 const char **ret_mode)
{
    bool cold = m->cold && (s->n_cold >= SAMPLES_MIN || s->n_cold == s->n_all);
    *ret_n = cold ? s->n_cold : s->n_all;
    *ret_mode = why_eager(m) ? "eager" : cold ? "cold" : "warm";
    return cold ? s->cold : s->all;
}

/* Scales a step's FLOP count, which assumes the average number of routes to the local experts, to the actual
 * number of routes. */
static double routed_flops(const struct mf_measured *m, double flops)
{
    const struct mf_shape *s = &m->session->shape;
    double expected = (double)(s->token * s->topk) * mf_shape_local_fraction(s);
    return flops * (double)m->session->rotation.routes / expected;
}

static int implausible(const struct mf_measured *m, double us, double flops, char *why, size_t cap)
{
    const struct mf_device_info *d = &m->session->device->info;
    /* a device does not measure the peak of every type */
    double peak = fmax(d->peak_gflops_fp8, fmax(d->peak_gflops_bf16, d->peak_gflops_f32) *
                                               mf_device_peak_ratio(&d->class, m->session->shape.q_dtype_a));
    if (!(us > 0)) {
        mf_format(why, cap, "implausible: its time is %.3g µs", us);
        return 1;
    }
    double gflops = routed_flops(m, flops) / us / 1e3, gbs = m->bytes / us / 1e3;
    if (peak > 0 && gflops > FLOPS_MARGIN * peak) {
        mf_format(why, cap,
                  "implausible: %.3g µs would be %.4g GFLOP/s, %.2f times the device's peak of %.4g", us,
                  gflops, gflops / peak, peak);
        return 1;
    }
    if (m->cold && d->mem_read_gbs > 0 && gbs > BYTES_MARGIN * d->mem_read_gbs) {
        mf_format(why, cap,
                  "implausible: %.3g µs would read weights at %.4g GB/s, %.2f times the memory's %.4g", us,
                  gbs, gbs / d->mem_read_gbs, d->mem_read_gbs);
        return 1;
    }
    return 0;
}

/* ---- measuring the ceilings again ---- */

MF_VECTOR_BODY(static, uint64_t, sum_words, (const uint64_t *x, size_t n), (x, n), {
    uint64_t sum[16] = {0};
    for (size_t i = 0; i + 16 <= n; i += 16) {
        for (size_t j = 0; j < 16; j++)
            sum[j] += x[i + j];
    }
    for (size_t j = 1; j < 16; j++)
        sum[0] += sum[j];
    return sum[0];
})

struct read_job {
    const uint8_t *at;
    size_t bytes;
    uint64_t sum; /* keeps the reads from being optimised away */
};

static void read_thread(void *context, int thread, int n_threads)
{
    struct read_job *j = context;
    size_t words = j->bytes / sizeof(uint64_t), from = words * (size_t)thread / (size_t)n_threads;
    size_t to = words * (size_t)(thread + 1) / (size_t)n_threads;
    uint64_t sum = sum_words((const uint64_t *)(const void *)j->at + from, to - from);
    (void)__atomic_fetch_add(&j->sum, sum, __ATOMIC_RELAXED);
}

/* Measures the best read bandwidth over the step's weights. Each timed read is as short as a run of the step,
 * because on a busy machine only short reads are undisturbed. Uses the host clock, not the device clock. */
static double measure_read(const struct mf_measured *m)
{
    const struct mf_session_weight *w = m->weights[0] ? m->weights[0] : m->weights[1];
    size_t run = (size_t)m->bytes / 64 * 64, at = 0;
    double best = 0;
    if (!w || run == 0 || w->region.bytes < run)
        return 0;
    uint64_t end = mf_now_ns() + READ_MS * UINT64_C(1000000);
    do {
        struct read_job j = {.at = w->region.at + at, .bytes = run};
        uint64_t start = mf_now_ns();
        mf_pool_run(read_thread, &j, mf_pool_threads());
        best = fmax(best, (double)run / (double)(mf_now_ns() - start));
        at = at + 2 * run <= w->region.bytes ? at + run : 0;
    } while (mf_now_ns() < end);
    return best;
}

/* Measures the ceilings again before a step is rejected, because ceilings measured on a busy machine are too
 * low. Never lowers a ceiling. */
static void raise_ceilings(const struct mf_measured *m)
{
    struct mf_session *s = m->session;
    struct mf_device_info *d = &s->device->info;
    struct mf_cpu_peaks peaks;
    if (strcmp(s->device->ops->kind, "cpu") != 0 || d->simulated || s->n_ceilings >= CEILINGS_MAX)
        return;
    s->n_ceilings++;
    d->mem_read_gbs = fmax(d->mem_read_gbs, measure_read(m));
    if (mf_cpu_peaks_measure(mf_isa_best(), d->llc_bytes, &peaks) < 0)
        return;
    d->peak_gflops_bf16 = fmax(d->peak_gflops_bf16, peaks.bf16_gflops);
    d->peak_gflops_f32 = fmax(d->peak_gflops_f32, peaks.f32_gflops);
    d->mem_read_gbs = fmax(d->mem_read_gbs, peaks.mem_read_gbs);
}

int mf_measure_implausible(const struct mf_measured *m, double us, double flops, char *why, size_t cap)
{
    int r = implausible(m, us, flops, why, cap);
    if (r == 0 || !(us > 0))
        return r;
    raise_ceilings(m);
    r = implausible(m, us, flops, why, cap);
    if (r == 0)
        why[0] = 0;
    return r;
}

/* ---- the canary ---- */

#define CANARY_FLOATS 32768
#define CANARY_PASSES 16

static volatile float canary_seed = 0.25f; /* volatile, so that the compiler cannot precompute the canary */
static float canary_data[CANARY_FLOATS];

static int canary_launch(void *context, int index)
{
    float *result = context, sum[16] = {0};
    (void)index;
    for (int pass = 0; pass < CANARY_PASSES; pass++) {
        for (size_t i = 0; i < CANARY_FLOATS; i += 16) {
            for (size_t j = 0; j < 16; j++)
                sum[j] = sum[j] * 0.999f + canary_data[i + j];
        }
    }
    for (size_t j = 0; j < 16; j++)
        *result += sum[j];
    return 0;
}

double mf_canary_us(struct mf_device *device)
{
    float result = 0;
    double us = NAN;
    if (device->ops->canary)
        return device->ops->canary(device, &us) < 0 ? (double)NAN : us;
    for (size_t i = 0; i < CANARY_FLOATS; i++)
        canary_data[i] = canary_seed;
    if (device->ops->time(device, canary_launch, &result, 1, &us) < 0)
        return NAN;
    canary_seed = result * 0 + 0.25f;
    return us;
}
