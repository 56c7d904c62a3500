/* Inputs at fixed addresses, for kernels that replay captured launches (mf_family.captures). The values of a
 * rotation are copied into them before a timed run, outside of the timed interval. */
#pragma once

#include "measure/session/session_data.h"

/* Allocates memory for the tensor specs and stores their addresses for launches in `ret`. The addresses are
 * valid until the next call for the session. Returns 0 or -ENOMEM. */
int mf_fixed_inputs_reserve(struct mf_session *s, const struct mf_tensor_spec *specs, size_t n,
                            struct mf_tensor_ref *ret);
/* Copies a tensor. Both references have addresses for launches. Returns 0, or an error of
 * mf_device_ops.copy. */
int mf_fixed_input_copy(struct mf_session *s, const struct mf_tensor_spec *a, const struct mf_tensor_ref *to,
                        const struct mf_tensor_ref *from);
