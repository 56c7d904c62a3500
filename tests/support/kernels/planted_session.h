/* A planted device and a session on it, one of each per test. Pass planted_setup and planted_teardown to
 * mf_check_main(). */
#pragma once

#include "measure/session/session.h"
#include "support/kernels/planted.h"

extern struct mf_device *test_device;
extern struct mf_session *test_session; /* NULL until planted_session_start() */

/* Opens a device with an honest clock. */
void planted_setup(void);
/* Frees the session and the device. */
void planted_teardown(void);

/* Starts a session, which replaces the previous one; a failure fails the test. memfd_store: NULL for none. */
void planted_session_start(const struct mf_shape *shape, const struct mf_unit_options *options,
                           struct mf_memfd_store *memfd_store);

/* Measures one step. best_us: the best time of its kind; NULL: unknown. ret_limit_ms may be NULL. */
struct mf_unit_result planted_probe_against(const struct mf_step *step, double *best_us,
                                            int64_t *ret_limit_ms);
struct mf_unit_result planted_probe(const struct mf_step *step);
