/* Measures the timing noise of the CPU device: times a fixed step repeatedly and races it against itself.
 *
 *   sigma            relative spread between consecutive calls
 *                    (1.4826 · MAD / median of the differences between neighbours / √2)
 *   drift            relative spread of the medians of blocks of 50 calls
 *   aa_outside_ci    number of A/A races, of 100, in which the 95% interval of the paired median difference
 *                    excludes 0
 *
 * Prints "name value unit" lines. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/paired.h"
#include "kernels/core/device.h"
#include "kernels/core/philox.h"
#include "measure/session/session.h"

#define N_RACES  100
#define N_ROUNDS 40
#define N_CALLS  2000
#define BLOCK    50
#define SEED     20250101u

/* State of a step that is similar to a decode step: all threads read memory that exceeds the last-level
 * cache. */
struct work {
    const float *at;
    size_t n, next, run;
    float sum;
};

static void read_thread(void *context, int thread, int n_threads)
{
    struct work *w = context;
    const float *from = w->at + w->next;
    float sum = 0;
    for (size_t i = w->run * (size_t)thread / (size_t)n_threads;
         i < w->run * (size_t)(thread + 1) / (size_t)n_threads; i++)
        sum += from[i];
    if (thread == 0)
        w->sum += sum;
}

static int launch(void *context, int index)
{
    (void)index;
    mf_pool_run(read_thread, context, mf_pool_threads());
    return 0;
}

static double sample(struct mf_device *d, struct work *w)
{
    double us = NAN;
    w->next = w->next + 2 * w->run <= w->n ? w->next + w->run : 0;
    (void)d->ops->time(d, launch, w, 1, &us);
    return us;
}

static void noise(struct mf_device *d, struct work *w)
{
    static double us[N_CALLS], difference[N_CALLS], block[BLOCK], medians[N_CALLS / BLOCK], copy[N_CALLS];
    for (int i = 0; i < N_CALLS; i++)
        us[i] = sample(d, w);
    memcpy(copy, us, sizeof(us));
    double centre = mf_median(copy, N_CALLS);
    for (int i = 0; i + 1 < N_CALLS; i++)
        difference[i] = us[i + 1] - us[i];
    printf("sigma %.5f ratio\n", 1.4826 * mf_mad(difference, N_CALLS - 1) / M_SQRT2 / centre);
    for (int b = 0; b < N_CALLS / BLOCK; b++) {
        memcpy(block, us + (ptrdiff_t)b * BLOCK, sizeof(block));
        medians[b] = mf_median(block, BLOCK);
    }
    printf("drift %.5f ratio\n", 1.4826 * mf_mad(medians, N_CALLS / BLOCK) / centre);
}

/* Races the step against itself: each round times a pair in random order. Returns true if the interval of the
 * difference excludes 0. */
static bool is_outside(struct mf_device *d, struct work *w, uint64_t race)
{
    double a[N_ROUNDS], b[N_ROUNDS], scratch[N_ROUNDS];
    struct mf_interval change;
    for (int i = 0; i < N_ROUNDS; i++) {
        bool swapped = mf_philox(SEED, race, (uint64_t)i).v[0] & 1;
        double first = sample(d, w), second = sample(d, w);
        a[i] = swapped ? second : first;
        b[i] = swapped ? first : second;
    }
    return mf_paired_interval(a, b, N_ROUNDS, 0.95, scratch, &change) == 0 &&
           (change.low > 0 || change.high < 0);
}

int main(void)
{
    struct mf_device *d = NULL;
    char why[320];
    int outside = 0;
    if (mf_device_open("cpu:0", why, sizeof(why), &d) < 0) {
        (void)fprintf(stderr, "%s\n", why);
        return EXIT_FAILURE;
    }
    size_t bytes = MF_MAX((size_t)d->info.llc_bytes * 4, (size_t)64 << 20);
    struct work w = {.n = bytes / sizeof(float), .run = (4u << 20) / sizeof(float)};
    float *memory = d->ops->alloc(d, bytes);
    if (!memory)
        return EXIT_FAILURE;
    for (size_t i = 0; i < w.n; i++)
        memory[i] = (float)(i & 7);
    w.at = memory;
    noise(d, &w);
    for (uint64_t race = 0; race < N_RACES; race++)
        outside += is_outside(d, &w, race);
    printf("aa_outside_ci %d of_%d\naa_seed %u id\n", outside, N_RACES, SEED);
    d->ops->release(d, memory, bytes);
    (void)mf_device_close(d);
    return EXIT_SUCCESS;
}
