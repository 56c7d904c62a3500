/* Inputs at fixed addresses, for kernels that replay captured launches (mf_family.captures). The inputs of a
 * rotation (measure/race/rotate.h) are copied into them before a timed run, outside of the timed interval. */
#pragma once

#include "measure/session/session_data.h"

/* Allocates memory for the tensor specs and stores their addresses for launches in `ret`. The addresses are
 * valid until the next call for the session. Returns 0 or -ENOMEM. */
int mf_fixed_inputs_reserve(struct mf_session *s, const struct mf_tensor_spec *specs, size_t n,
                            struct mf_tensor_ref *ret);
/* Returns the index of the first input with values that the result depends on, or -1. It is hidden while
 * foreign code captures its launches, or until its work begins on the device's stream. Work that runs at once
 * on another stream then computes from poison. */
int mf_fixed_input_witness(const struct mf_tensor_spec *needs, int n);
/* Fills a tensor with its poison, and returns when it is done. Returns 0 or -EIO. */
int mf_fixed_input_hide(struct mf_session *s, const struct mf_tensor_spec *a, const struct mf_tensor_ref *to);
/* Queues a copy of a tensor on the stream of the device's launches. */
int mf_fixed_input_queue_copy(struct mf_session *s, const struct mf_tensor_spec *a,
                              const struct mf_tensor_ref *to, const struct mf_tensor_ref *from);
/* Copies a tensor. Both references have addresses for launches. Returns 0, or an error of
 * mf_device_ops.copy. */
int mf_fixed_input_copy(struct mf_session *s, const struct mf_tensor_spec *a, const struct mf_tensor_ref *to,
                        const struct mf_tensor_ref *from);
