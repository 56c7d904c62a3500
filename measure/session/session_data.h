/* A session's inside: its data, and the buffers made of it on demand. Only session*.c include this.
 *
 * Weights and references live in sealed memory files under a key that names all that they depend on; weights that a device
 * makes itself live in its memory alone, and are made again by the next runner. Inputs of steps are made once for each
 * tensor spec and rotation and are read-only from then on; outputs are made twice for each tensor spec (run one and run two). Both
 * are dropped between steps when they pass a quarter of the memory that was free at the start. */
#pragma once

#include "kernels/gpu/host/device_data.h"
#include "kernels/reference/reference.h"
#include "measure/race/rotate.h"
#include "measure/session/ahead.h"
#include "measure/session/guard.h"
#include "measure/session/session.h"

#define MF_SESSION_KINDS_MAX 512

struct mf_session_weight {
    struct mf_tensor_spec tensor_spec;
    struct mf_region region;
    struct mf_tensor_ref ref,
        seen; /* the host's addresses, NULL where it has none, and those that launches get */
    double used[MF_ROTATIONS_MAX]; /* session.traffic when a rotation was last read; < 0: never */
    int cursor;                    /* rotation of the last timed call */
};

struct mf_session_input {
    struct mf_guarded buffer;
    int rotation;
};

struct mf_session_output {
    struct mf_guarded run[2];
};

/* Which source row each row of sorted.<block> holds, -1 for padding. */
struct mf_session_order {
    int32_t block;
    enum mf_tensor decoded; /* of a decoded weight's rows, which slots then has; else MF_TENSOR_N_ */
    int64_t *slots, *tokens;
};

/* Best time of the steps that are held against each other under a key: of a kind, of a place, of a layout (session.c). */
struct mf_session_kind {
    uint64_t key;
    double best_us;
};

struct mf_session {
    struct mf_device *device;
    struct mf_shape shape;
    struct mf_unit_options options;
    struct mf_memfd_store *memfd_store;
    const struct mf_family_set *extra;
    struct mf_sink *sink;
    struct mf_device_data *maker; /* of what the device makes itself; NULL: the host makes all */

    struct mf_region x_region, topk_region, b1_region, b2_region, ref_region, z_region;
    struct mf_layer_data data;
    struct mf_reference ref;
    struct mf_rotation rotation;
    struct mf_session_weight weights[16];
    size_t n_weights;
    double traffic; /* bytes of weights that timed calls have read, and washing */

    struct mf_session_input *inputs;
    size_t n_inputs, cap_inputs;
    struct mf_session_output **outputs; /* each in memory of its own: callers keep pointers to them */
    size_t n_outputs, cap_outputs;
    struct mf_session_order orders[16];
    size_t n_orders;
    struct mf_region workspace, arena;
    uint64_t buffer_bytes, buffer_max;
    bool worn; /* a step has run since all that the device holds was made */

    struct mf_session_kind kinds[MF_SESSION_KINDS_MAX];
    size_t n_kinds;
    double calm_canary_us; /* 0: none was run yet */
    int n_ceilings;        /* times that the device's ceilings were measured again */
};

/* The references of the session's data; made, or found, and kept. */
int mf_session_reference(struct mf_session *s);
/* z for the host, where references that a device made have none. */
int mf_session_z(struct mf_session *s);
/* The weight in that layout; made, or found, and kept. The pointer is good until the session ends. */
int mf_session_weight(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_session_weight **ret);
/* The input a step is fed in that rotation: as launches see it, and, where ret_host is given, as the host does. */
int mf_session_input(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                     struct mf_tensor_ref *ret_seen, struct mf_tensor_ref *ret_host);
/* Output buffers for both runs; valid until the next mf_session_trim(). */
int mf_session_output(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_guarded *ret[2]);
/* Rows of an output. NULL: every row is somebody's, in its own place: token order, slot order of a layer that is here whole, index
 * tensor specs. */
int mf_session_source(struct mf_session *s, const struct mf_tensor_spec *a, const int64_t **ret);
/* Gives back what the device has only kept, so that what found no room there may be tried once more: whether there was any. */
bool mf_session_give_way(struct mf_session *s);
/* A region that is at least so large; its contents are undefined. */
int mf_session_room(struct mf_session *s, struct mf_region *region, size_t bytes);
/* Makes what steps are fed anew, inputs when they are wanted next: a step before may have written over any of it, which no guard sees.
 * What was told of inputs before is good for nothing; weights and outputs are where they were. */
int mf_session_renew(struct mf_session *s);
/* Of who is right then: what is said beside its result, instead of the sentence that refused it before. */
void mf_session_say_renewed(char reason[MF_REASON_MAX]);
/* Has a step run since? With memory of its own a device has no page that a step dies of when it writes to it. */
bool mf_session_may_be_spoiled(const struct mf_session *s);
/* Between steps: drops inputs and outputs when they have grown too large. */
void mf_session_trim(struct mf_session *s);

void mf_session_phase(struct mf_sink *sink, enum mf_phase phase);
/* Of steps of this session; refers to it. */
struct mf_ahead mf_session_ahead(const struct mf_session *s);
/* A device whose canary takes that many times its calm time is throttled, or somebody else's too. */
#define MF_CANARY_LIMIT 1.5
/* Canary's time over its least in this session; NAN: the device has none. */
double mf_session_canary(struct mf_session *s);
/* Waits until the canary is calm again. When it does not become so in a while, that is the device's pace from now on. */
void mf_session_rest(struct mf_session *s);
