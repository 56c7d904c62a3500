/* Private data of a session and the buffers created from it on demand. The public interface is session.h.
 *
 * Weights and references are in sealed memory files, keyed by everything that they depend on. Weights that a
 * device creates exist only in device memory, and the next runner creates them again. Inputs are created once
 * per tensor spec and rotation and are then read-only. Kernels that replay captured launches read copies of
 * inputs (fixed_inputs.h). Each output has two buffers, for run one and run two. Inputs and outputs are
 * dropped between steps once their total size exceeds a quarter of the memory that was free at session start.
 */
#pragma once

#include "kernels/gpu/host/device_data.h"
#include "kernels/reference/reference.h"
#include "measure/race/rotate.h"
#include "measure/session/guard.h"
#include "measure/session/precompile.h"
#include "measure/session/prune.h"
#include "measure/session/unit.h"

struct mf_session_weight {
    struct mf_tensor_spec tensor_spec;
    struct mf_region region;
    /* ref: host addresses, NULL if the host has no copy; launch_ref: addresses for launches */
    struct mf_tensor_ref ref, launch_ref;
    /* per rotation: value of session.traffic when the rotation was last read; < 0: never read */
    double used[MF_ROTATIONS_MAX];
    int cursor; /* rotation of the last timed call that read this weight */
};

struct mf_session_input {
    struct mf_guarded buffer;
    int rotation;
};

struct mf_session_output {
    struct mf_guarded run[2];
};

/* Source row of each output row, -1 for padding. `slots` numbers source rows by slot or weight row. `tokens`
 * numbers them by token, for x. */
struct mf_session_order {
    int32_t block;
    enum mf_tensor decoded; /* weight whose decoded rows are in slots; MF_TENSOR_N_ otherwise */
    int64_t *slots, *tokens;
};

struct mf_session {
    struct mf_device *device;
    struct mf_shape shape;
    struct mf_unit_options options;
    struct mf_memfd_store *memfd_store;
    const struct mf_family_set *extra;
    struct mf_sink *sink;
    struct mf_device_data *device_data; /* creates data on the device; NULL: the host creates all data */

    struct mf_region x_region, topk_region, b1_region, b2_region, ref_region, z_region;
    struct mf_layer_data data;
    struct mf_reference ref;
    struct mf_rotation rotation;
    struct mf_session_weight weights[16];
    size_t n_weights;
    double traffic; /* bytes of weights read by timed calls and bytes moved to evict the L2 cache */

    struct mf_session_input *inputs;
    size_t n_inputs, cap_inputs;
    struct mf_session_output **outputs; /* allocated separately, so that pointers to entries stay valid */
    size_t n_outputs, cap_outputs;
    struct mf_session_order orders[16];
    size_t n_orders;
    struct mf_region workspace, arena, fixed_inputs;
    uint64_t buffer_bytes, buffer_max;
    bool step_has_run; /* true: a step has run since the device data was created */

    struct mf_prune_bests bests;
    double baseline_canary_us; /* lowest canary time of this session; 0: not run yet */
    int n_ceilings;            /* number of times that the device's ceilings were measured again */
};

/* Finds or creates the references and stores them in memfd_store. */
int mf_session_reference(struct mf_session *s);
/* Creates z on the host if the references were created on the device without it. */
int mf_session_z(struct mf_session *s);
/* Finds or creates the weight in tensor spec `a`. The pointer is valid until the session ends. */
int mf_session_weight(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_session_weight **ret);
/* Finds or creates a step's input for the given rotation. *ret_launch_ref has the addresses for launches.
 * *ret_host (may be NULL) has the host addresses. */
int mf_session_input(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                     struct mf_tensor_ref *ret_launch_ref, struct mf_tensor_ref *ret_host);
/* Finds or creates the output buffers for run one and run two. They are valid until the next
 * mf_session_trim(). */
int mf_session_output(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_guarded *ret[2]);
/* Finds the source row of each row of an output, -1 for padding. *ret is NULL if row p has source row p. This
 * is the case in token order, in slot order without expert parallelism, and for index tensor specs. */
int mf_session_source(struct mf_session *s, const struct mf_tensor_spec *a, const int64_t **ret);
/* Frees device memory that device_data uses only as a cache. Returns true if any memory was freed; the caller
 * can then retry a failed allocation. */
bool mf_session_free_device_cache(struct mf_session *s);
/* Makes the region at least `bytes` bytes large. The contents of the region are then undefined. */
int mf_session_reserve(struct mf_session *s, struct mf_region *region, size_t bytes);
/* Restores all step inputs, because an earlier step may have overwritten device memory without touching a
 * guard band. Weights are rewritten in place. Other inputs are dropped and created again on demand. If the
 * device uses host memory, outputs, workspace and arena get new, empty memory. mf_tensor_refs of weights stay
 * valid, as do those of outputs of a device with its own memory; all others become invalid. */
int mf_session_renew(struct mf_session *s);
/* Rewrites the reason of a failed result, after a retry on restored inputs has passed. */
void mf_session_retry_reason(char reason[MF_REASON_MAX]);
/* True if a wrong result may come from data that an earlier step has overwritten. The step must then run
 * again on restored data before it is rejected. */
bool mf_session_data_suspect(const struct mf_session *s);
/* True if an earlier step may have overwritten the inputs, because the device cannot write-protect them. */
bool mf_session_inputs_unprotected(const struct mf_session *s);
/* Drops all inputs and outputs if their total size is too large. Call it between steps only. */
void mf_session_trim(struct mf_session *s);
/* Frees all inputs, outputs and orders. Only mf_session_free calls it. */
void mf_session_free_buffers(struct mf_session *s);

void mf_session_phase(struct mf_sink *sink, enum mf_phase phase);
/* Returns an empty precompilation list for this session's steps. The list refers to the session. */
struct mf_ahead mf_session_ahead(const struct mf_session *s);
/* If the canary exceeds this multiple of its baseline, the device is throttled or shared. */
#define MF_CANARY_LIMIT 1.5
/* Runs the canary. Returns its time relative to the lowest time of this session, or NAN if the canary failed.
 */
double mf_session_canary(struct mf_session *s);
/* Waits until the canary is back at its baseline. If the canary is still slow after 200 ms, its current time
 * becomes the baseline. */
void mf_session_cool_down(struct mf_session *s);
