/* The CPU device: description, memory, timing, and invalid device names. */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "support/mf_check.h"

static struct mf_device *open_cpu(const struct mf_device_info *known)
{
    struct mf_device *d = NULL;
    char why[200] = "";

    ck_assert_msg(mf_device_open_with("cpu:0", &(struct mf_device_open_options){.known = known}, why,
                                      sizeof(why), &d) == 0,
                  "%s", why);
    return d;
}

MF_TEST(test_describes)
{
    struct mf_device *d = open_cpu(NULL);
    struct mf_device_class parsed;
    char text[MF_DEVICE_CLASS_TEXT_MAX];

    ck_assert_str_eq(d->ops->kind, "cpu");
    mf_device_class_print(&d->info.class, text);
    ck_assert_int_eq(mf_device_class_parse(text, &parsed), 0);
    ck_assert(mf_device_class_equal(&parsed, &d->info.class));
    ck_assert_int_eq(strncmp(d->info.class.gfx, "cpu-", 4), 0);
    ck_assert_int_eq(d->info.cores, mf_pool_threads());
    ck_assert_int_eq(d->info.class.cu_num, d->info.cores);
    ck_assert_str_eq(d->info.isa, mf_isa_name(mf_isa_best()));
    ck_assert(d->info.model[0] && d->info.compiler[0] && !d->info.simulated);
    ck_assert(d->info.memory_bytes > (64u << 20));
    ck_assert(d->info.llc_bytes >= (64u << 10));
    /* The limits are wide enough for any machine, and for builds with sanitizers. */
    ck_assert(d->info.mem_read_gbs > 0.05 && d->info.mem_read_gbs < 5000);
    ck_assert(d->info.peak_gflops_f32 > 0.05 && d->info.peak_gflops_f32 < 100000);
    ck_assert(d->info.peak_gflops_bf16 > 0.05 && d->info.peak_gflops_bf16 < 1000000);
    ck_assert(d->info.gap_us > 0 && d->info.gap_us < 100000);
    (void)mf_device_close(d);
}

/* Known peak rates are used as given. */
MF_TEST(test_known)
{
    const struct mf_device_info known = {
        .peak_gflops_bf16 = 123, .peak_gflops_f32 = 45, .mem_read_gbs = 6.5, .gap_us = 0.75};
    struct mf_device *d = open_cpu(&known);

    ck_assert(d->info.peak_gflops_bf16 == 123 && d->info.peak_gflops_f32 == 45);
    ck_assert(d->info.mem_read_gbs == 6.5 && d->info.gap_us == 0.75);
    (void)mf_device_close(d);
}

MF_TEST(test_memory)
{
    struct mf_device *d = open_cpu(&(struct mf_device_info){.gap_us = 1});
    static const size_t sizes[] = {1, 63, 4096, 4097, 9u << 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned char *p = d->ops->alloc(d, sizes[i]), *q = d->ops->alloc(d, sizes[i]);
        ck_assert(p && q && (uintptr_t)p % 64 == 0);
        ck_assert_int_eq(p[0], 0);
        ck_assert_int_eq(p[sizes[i] - 1], 0);
        memset(p, 0x5a, sizes[i]);
        d->ops->copy(d, q, p, sizes[i]);
        ck_assert_int_eq(memcmp(p, q, sizes[i]), 0);
        d->ops->release(d, p, sizes[i]);
        d->ops->release(d, q, sizes[i]);
    }
    ck_assert_ptr_null(d->ops->alloc(d, 0));
    ck_assert_ptr_null(d->ops->alloc(d, SIZE_MAX));
    d->ops->release(d, NULL, 0);
    (void)mf_device_close(d);
}

struct calls {
    int n, last, fail_at;
};

static int record(void *context, int index)
{
    struct calls *c = context;

    c->n++;
    c->last = index;
    return index == c->fail_at ? -ENOTSUP : 0;
}

MF_TEST(test_time)
{
    struct mf_device *d = open_cpu(&(struct mf_device_info){.gap_us = 1});
    struct calls c = {.fail_at = -1};
    double us = -1;

    ck_assert_int_eq(d->ops->time(d, record, &c, 5, &us), 0);
    ck_assert(c.n == 5 && c.last == 4);
    ck_assert(us >= 0 && us < 1e7);
    /* an error of the launch is returned and ends the sample */
    c = (struct calls){.fail_at = 2};
    us = -1;
    ck_assert_int_eq(d->ops->time(d, record, &c, 5, &us), -ENOTSUP);
    ck_assert_int_eq(c.n, 3);
    ck_assert(us == -1);
    (void)mf_device_close(d);
}

MF_TEST(test_names, .rows = 6)
{
    static const char *const names[] = {"", "cpu", "cpu:1", "cpu:00", "gpu:0", "cpu:0 "};
    struct mf_device *d = NULL;
    char why[200] = "";

    ck_assert_int_eq(mf_device_open(names[_i], why, sizeof(why), &d), -EINVAL);
    ck_assert_ptr_null(d);
    ck_assert_ptr_nonnull(strstr(why, "cpu:0"));
}

/* Every instruction set up to the machine's best can be selected; higher or unknown names select the best. */
MF_TEST(test_isa, .rows = 4)
{
    static const char *const asked[] = {"c", "avx2", "avx512", "mmx"};
    struct mf_device *d;
    enum mf_isa best = mf_isa_best();

    ck_assert_int_eq(setenv("MOEFARM_ISA", asked[_i], 1), 0);
    d = open_cpu(&(struct mf_device_info){.gap_us = 1});
    ck_assert_int_eq(mf_isa_best(), _i < (int)best ? _i : (int)best);
    ck_assert_str_eq(d->info.isa, mf_isa_name(mf_isa_best()));
    (void)mf_device_close(d);
}

MF_TEST(test_revision)
{
    const char *r = mf_kernel_revision();

    ck_assert_int_eq((int)strlen(r), 16);
    ck_assert_int_eq((int)strspn(r, "0123456789abcdef"), 16);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
