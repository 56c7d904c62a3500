/* Prints `name value unit` lines: the machine's peak rates, and for each shape of the demo the ratio of the
 * best pipeline's time to the lower bound and to the time with oneDNN. Arguments select shapes by a prefix of
 * their names. */
#include "bench_kernels.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"

static bool is_selected(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(name, argv[i], strlen(argv[i])) == 0)
            return true;
    }
    return argc < 2;
}

static int bench_shape(struct mf_device *d, const struct bench_shape *shape)
{
    static const int64_t tokens[] = {1, 4, 16, 64, 1024};
    static const struct {
        const char *name;
        enum bench_kind over;
        bool inverse;
    } ratios[] = {{"own_over_lib", BENCH_LIB, false},
                  {"a16_over_own", BENCH_A16, true},
                  {"split_over_own", BENCH_SPLIT, true}};
    struct bench_weights *w = bench_weights_new(d, shape);
    double space = 0;

    if (!w)
        return 1;
    for (size_t i = 0; i < MF_ARRAY_LEN(tokens); i++) {
        struct bench_result r;
        if (tokens[i] > 64 && shape->q_type != MF_QTYPE_NO)
            continue;
        if (bench_tokens(w, tokens[i], &r) < 0)
            return 1;
        printf("e2e_over_floor.%s.T%lld %.3f ratio\n", shape->name, (long long)tokens[i],
               r.us[BENCH_OWN] / r.floor_us);
        printf("e2e_over_read.%s.T%lld %.3f ratio\n", shape->name, (long long)tokens[i],
               r.us[BENCH_OWN] / r.read_us);
        printf("e2e.%s.T%lld %.1f us\n", shape->name, (long long)tokens[i], r.us[BENCH_OWN]);
        for (size_t j = 0; j < MF_ARRAY_LEN(ratios); j++) {
            double over = r.us[ratios[j].over];
            if (over > 0)
                printf("%s.%s.T%lld %.3f ratio\n", ratios[j].name, shape->name, (long long)tokens[i],
                       ratios[j].inverse ? over / r.us[BENCH_OWN] : r.us[BENCH_OWN] / over);
        }
        printf("# %d steps; %s\n", r.n_steps, r.best[BENCH_OWN]);
        for (size_t j = 0; j < MF_ARRAY_LEN(ratios); j++) {
            if (ratios[j].inverse && r.us[ratios[j].over] > 0)
                printf("# %s: %s\n", ratios[j].name, r.best[ratios[j].over]);
        }
        (void)fflush(stdout);
        space = r.space > space ? r.space : space;
    }
    printf("space.%s %.2f ratio\n", shape->name, space);
    (void)bench_weights_free(w);
    return 0;
}

int main(int argc, char **argv)
{
    struct mf_device *d;
    char why[200];
    size_t n;
    int failed = 0;

    if (mf_device_open("cpu:0", why, sizeof(why), &d) < 0) {
        (void)fprintf(stderr, "%s\n", why);
        return 1;
    }
    printf(
        "mem_read_gbs %.1f GB/s\nbf16_peak_gflops %.0f GFLOPS\nf32_peak_gflops %.0f GFLOPS\ngap_us %.2f us\n",
        d->info.mem_read_gbs, d->info.peak_gflops_bf16, d->info.peak_gflops_f32, d->info.gap_us);
    printf("# %s/%d, %s, %s\n", d->info.class.gfx, d->info.class.cu_num, d->info.model, d->info.isa);
    (void)fflush(stdout);
    const struct bench_shape *shapes = bench_shapes(&n);
    for (size_t i = 0; i < n && !failed; i++) {
        if (is_selected(argc, argv, shapes[i].name))
            failed = bench_shape(d, &shapes[i]);
    }
    (void)mf_device_close(d);
    return failed;
}
