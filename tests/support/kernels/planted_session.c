#include "support/kernels/planted_session.h"

#include <check.h>

#include "measure/session/session_data.h"

struct mf_device *test_device;
struct mf_session *test_session;

void planted_setup(void)
{
    test_device = planted_device(CLOCK_HONEST);
}

void planted_teardown(void)
{
    test_session = mf_session_free(test_session);
    test_device->ops->free(test_device);
}

void planted_session_start(const struct mf_shape *shape, const struct mf_unit_options *options,
                           struct mf_memfd_store *memfd_store)
{
    char why[MF_REASON_MAX];
    struct mf_session_args args = {.device = test_device,
                                   .shape = *shape,
                                   .options = options,
                                   .memfd_store = memfd_store,
                                   .extra = &planted_set};
    test_session = mf_session_free(test_session);
    ck_assert_msg(mf_session_new(&args, why, sizeof(why), &test_session) == 0, "%s", why);
}

static double best_of_context(void *context, mf_ops covers)
{
    (void)covers;
    return *(double *)context;
}

struct mf_unit_result planted_probe_against(const struct mf_step *step, double *best_us,
                                            int64_t *ret_limit_ms)
{
    struct planted_sink sink;
    struct mf_probe_step p = {.id = 7, .step = *step};
    planted_sink_init(&sink);
    ck_assert_int_eq(
        mf_session_probe(test_session, &p, 1, best_us ? best_of_context : NULL, best_us, &sink.sink), 0);
    ck_assert_uint_eq(sink.n_results, 1);
    ck_assert_int_eq(sink.results[0].id, 7);
    if (ret_limit_ms)
        *ret_limit_ms = sink.limit_ms;
    sink.results[0].samples = NULL; /* owned by the sink */
    return sink.results[0];
}

struct mf_unit_result planted_probe(const struct mf_step *step)
{
    return planted_probe_against(step, NULL, NULL);
}
