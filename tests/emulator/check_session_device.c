/* A session on a device (here the emulator) that has its own memory and creates its data itself. The data
 * equals the host's data, the host keeps no buffer as large as a weight, steps are verified against
 * references that the device creates, and the host takes over if the device runs out of memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "emulator/device_emulated.h"
#include "kernels/core/data.h"
#include "measure/session/memory.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"
#include "measure/verify/verify.h"
#include "support/kernels/test_memfd_store.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

/* ---- helpers ---- */

static const struct mf_unit_options options = {.err_ratio = 0.05, .seed = 7, .time_cap_ms = 60000};

static struct mf_shape a_shape(void)
{
    struct mf_shape s;
    ck_assert_int_eq(
        mf_shape_parse("5,256,128,4,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch."
                       "float8_e4m3fn,QuantType.per_1x128,1,0",
                       &s),
        0);
    return s;
}

static struct mf_device *device(void)
{
    struct mf_device *d = NULL;
    ck_assert_int_eq(mf_device_emulated_open("sm_89", 3, 1, &d), 0);
    return d;
}

static struct mf_session *session_of(struct mf_device *d, const struct mf_shape *s,
                                     struct fake_memfd_store *k)
{
    struct mf_session *session = NULL;
    char why[MF_REASON_MAX];
    const struct mf_session_args args = {
        .device = d, .shape = *s, .options = &options, .memfd_store = k ? &k->memfd_store : NULL};
    ck_assert_msg(mf_session_new(&args, why, sizeof(why), &session) == 0, "%s", why);
    return session;
}

static struct mf_session_weight *weight_of(struct mf_session *session, const struct mf_tensor_spec *a)
{
    struct mf_session_weight *w = NULL;
    ck_assert_int_eq(mf_session_weight(session, a, &w), 0);
    return w;
}

/* Checks that each element of the weight in device memory equals the host's element. */
static void check_weight(struct mf_session *session, const struct mf_shape *s, enum mf_tensor tensor)
{
    const struct mf_tensor_spec row = mf_plain_w(s, tensor, "row");
    const struct mf_session_weight *w = weight_of(session, &row);
    struct mf_part parts[MF_PARTS_MAX];
    struct mf_tensor_ref want = {0};
    int n = mf_tensor_spec_parts(&row, s, parts);

    for (int i = 0; i < n; i++)
        want.part[i] = calloc(1, (size_t)mf_part_bytes(&parts[i]));
    ck_assert_int_eq(mf_data_weight(s, tensor, options.seed, &want), 0);
    for (int i = 0; i < n; i++) {
        ck_assert_mem_eq(w->launch_ref.part[i], want.part[i], (size_t)mf_part_bytes(&parts[i]));
        free(want.part[i]);
    }
}

/* Checks that the session's reference block is byte-identical to the block that the CPU creates, except z,
 * which stays on the device. */
static void check_reference(struct mf_session *session, const struct mf_shape *s)
{
    struct mf_device *cpu = NULL;
    char why[MF_REASON_MAX];
    size_t bytes;

    ck_assert_int_eq(mf_device_open("cpu:0", why, sizeof(why), &cpu), 0);
    struct mf_session *host = session_of(cpu, s, NULL);
    ck_assert_int_eq(mf_reference_bytes(s, false, &bytes), 0);
    ck_assert_mem_eq(session->ref_region.at, host->ref_region.at, bytes);
    ck_assert_int_eq(mf_session_z(session), 0);
    ck_assert_mem_eq(session->ref.z, host->ref.z,
                     (size_t)(s->token * s->topk * s->model_dim) * sizeof(*host->ref.z));
    (void)mf_session_free(host);
    (void)mf_device_close(cpu);
}

/* ---- tests ---- */

MF_TEST(device_creates_weights_and_references)
{
    const struct mf_shape s = a_shape();
    struct fake_memfd_store k;
    memfd_store_init(&k);
    struct mf_device *d = device();

    struct mf_session *first = session_of(d, &s, &k);
    ck_assert_ptr_nonnull(first->device_data);
    /* only the references, because weights are created on demand and not on the host */
    ck_assert_int_eq(k.n, 1);
    ck_assert_uint_eq(first->n_weights, 0);
    ck_assert_ptr_null(first->data.w1.part[0]);
    check_weight(first, &s, MF_TENSOR_W1);
    check_weight(first, &s, MF_TENSOR_W2);
    ck_assert_ptr_null(first->weights[0].ref.part[0]);
    check_reference(first, &s);
    first = mf_session_free(first);
    struct mf_session *second = session_of(d, &s, &k);
    ck_assert_int_eq(k.n, 1);
    ck_assert_int_eq(k.n_found, 1);
    check_reference(second, &s);
    (void)mf_session_free(second);
    (void)mf_device_close(d);
}

static uint64_t bytes_of_pages(const struct mf_region *r)
{
    struct stat st;
    ck_assert_int_eq(fstat(r->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* The host has pages only for an output's guard bands until it pulls the whole output. This also holds for
 * quantised outputs. */
MF_TEST(host_output_pages_on_demand)
{
    struct mf_shape s = a_shape();
    s.token = 100;
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);
    const struct mf_tensor_spec z = {.tensor = MF_TENSOR_Z, .format = MF_FORMAT_BF16, .order = "slot"};
    const struct mf_tensor_spec x = mf_plain_x(&s);
    for (size_t i = 0; i < 4; i++) {
        struct mf_guarded *out[2];
        ck_assert_int_eq(mf_session_output(session, i % 2 ? &x : &z, out), 0);
        const struct mf_region *r = &out[i / 2]->region;
        ck_assert_uint_lt(bytes_of_pages(r), r->bytes / 2);
        ck_assert_int_eq(mf_guarded_poison(out[i / 2], NULL, false), 0);
        ck_assert_int_eq(mf_guarded_pull_bands(out[i / 2]), 0);
        ck_assert_uint_lt(bytes_of_pages(r), r->bytes / 2);
        ck_assert_int_eq(mf_region_pull(r), 0);
        ck_assert_uint_ge(bytes_of_pages(r), r->bytes);
    }
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* The device creates the inputs without the host, in the row order of each rotation. The inputs are x, and
 * tensors that are gathered from x or from other tensors. */
MF_TEST(device_creates_inputs)
{
    struct mf_shape s = a_shape();
    s.token = 12;
    s.expert = 64;
    const struct mf_tensor_spec inputs[] = {
        {MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0, false},
        {MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", 16, false},
        {MF_TENSOR_H, MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", 32, false},
        {MF_TENSOR_Z, MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", 16, false},
        mf_plain_h(&s, 16),
    };
    struct mf_tensor_ref launch_ref[MF_ARRAY_LEN(inputs)][2], ignored;
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);
    ck_assert_int_gt(session->rotation.n, 1);
    for (size_t i = 0; i < MF_ARRAY_LEN(inputs); i++) {
        for (int rotation = 0; rotation < 2; rotation++)
            ck_assert_int_eq(mf_session_input(session, &inputs[i], rotation, &launch_ref[i][rotation], NULL),
                             0);
    }
    for (size_t i = 0; i < session->n_inputs; i++) {
        const struct mf_guarded *g = &session->inputs[i].buffer;
        bool is_slot = strcmp(g->tensor_spec.order, "slot") == 0 && g->tensor_spec.tensor == MF_TENSOR_H;
        ck_assert_int_eq(g->region.sparse, !is_slot && g->tensor_spec.format != MF_FORMAT_INDEX);
    }
    ck_assert_ptr_null(session->ref.z);
    ck_assert_int_eq(mf_session_z(session), 0);
    for (size_t i = 0; i < 2 * MF_ARRAY_LEN(inputs); i++) {
        const struct mf_tensor_spec *a = &inputs[i / 2];
        const struct mf_tensor_spec order = {MF_TENSOR_SORTED, MF_FORMAT_INDEX, MF_SCALE_NONE,
                                             "sorted",         a->block,        false};
        struct mf_tensor_ref sorted = {0}, want = {0};
        struct mf_part parts[MF_PARTS_MAX];
        int n = mf_tensor_spec_parts(a, &s, parts);
        if (a->block)
            ck_assert_int_eq(mf_session_input(session, &order, (int)(i % 2), &ignored, &sorted), 0);
        for (int p = 0; p < n; p++)
            want.part[p] = calloc(1, (size_t)mf_part_bytes(&parts[p]));
        ck_assert_int_eq(mf_reference_tensor_spec(&session->data, &session->ref, a, &sorted, &want), 0);
        for (int p = 0; p < n; p++) {
            ck_assert_mem_eq(launch_ref[i / 2][i % 2].part[p], want.part[p],
                             (size_t)mf_part_bytes(&parts[p]));
            free(want.part[p]);
        }
    }
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* ---- probing a step ---- */

struct test_sink {
    struct mf_sink sink; /* must be first */
    struct mf_unit_result results[4];
    size_t n;
};

static int begin(struct mf_sink *s, int64_t id, bool is_pipeline, int64_t limit_ms)
{
    (void)s, (void)id, (void)is_pipeline, (void)limit_ms;
    return 0;
}

static int take(struct mf_sink *s, const struct mf_unit_result *r)
{
    struct test_sink *t = (struct test_sink *)s;
    ck_assert_uint_lt(t->n, MF_ARRAY_LEN(t->results));
    t->results[t->n++] = *r;
    return 0;
}

static int take_outcome(struct mf_sink *s, const struct mf_race_outcome *o)
{
    (void)s, (void)o;
    return 0;
}

struct test_offer {
    struct mf_offer offer; /* must be first */
    const char *family, *prefix;
    enum mf_tensor gives; /* MF_TENSOR_N_: any tensor */
    struct mf_probe_step step;
    bool found;
};

static int take_step(struct mf_offer *o, const struct mf_step *s)
{
    struct test_offer *t = (struct test_offer *)o;
    bool gives = t->gives == MF_TENSOR_N_ || s->gives[0].tensor == t->gives;
    if (!t->found && gives && strcmp(s->family, t->family) == 0 &&
        strncmp(s->name, t->prefix, strlen(t->prefix)) == 0) {
        t->step = (struct mf_probe_step){.id = 1, .step = *s};
        t->found = true;
    }
    return 0;
}

/* Both stages read weights that exist only on the device. They are verified against references that the
 * device creates. */
static const struct {
    const char *family, *prefix;
} steps[] = {{"move", "quant1_"},
             {"two_stage", "s1_"},
             {"two_stage", "s2_"},
             {"move", "combine_z"},
             {"move", "combine_zw"}};

static struct mf_unit_result result_of(struct mf_session *session, const char *family, const char *prefix,
                                       enum mf_tensor gives)
{
    struct test_offer o = {{take_step, mf_offer_ignore_rejection}, family, prefix, gives, {0}, false};
    struct test_sink sink = {.sink = {.begin = begin, .result = take}};

    ck_assert_int_ge(mf_enumerate(&session->device->info, &session->shape, family, &o.offer), 0);
    ck_assert(o.found);
    ck_assert_int_eq(mf_session_probe(session, &o.step, 1, NULL, NULL, &sink.sink), 0);
    ck_assert_uint_eq(sink.n, 1);
    return sink.results[0];
}

static void probe_one(struct mf_session *session, const char *family, const char *prefix,
                      enum mf_tensor gives)
{
    struct mf_unit_result r = result_of(session, family, prefix, gives);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s: %s", prefix, r.reason);
    ck_assert_int_eq(r.verified, 2);
}

static void probe(struct mf_session *session, const char *family, const char *prefix)
{
    probe_one(session, family, prefix, MF_TENSOR_N_);
}

MF_TEST(step_verified_against_device_reference, .rows = MF_ARRAY_LEN(steps))
{
    if (!mf_draw(_i, 2))
        return;
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);

    probe(session, steps[_i].family, steps[_i].prefix);
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* If the device rejects a z, the host computes z and checks the output too. The host never checks a z that
 * the device accepts. */
MF_TEST(host_rechecks_rejected_z)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);
    const struct mf_tensor_spec z = {.tensor = MF_TENSOR_Z, .format = MF_FORMAT_BF16, .order = "slot"};
    struct mf_guarded *out[2];
    struct mf_verdict verdict;

    ck_assert_int_eq(mf_session_output(session, &z, out), 0);
    const struct mf_verify_input v = {&session->data, &session->ref, out[0], NULL, 0, 0.05, false};
    ck_assert_int_eq(mf_guarded_poison(out[0], NULL, false), 0);
    ck_assert_int_eq(mf_device_data_plain_z(session->device_data, &session->data, &session->ref, &z,
                                            out[0]->launch_ref.part[0]),
                     0);
    ck_assert_int_eq(mf_verify(&v, &verdict), 0);
    ck_assert_ptr_null(session->ref.z);
    ck_assert_int_eq(mf_guarded_poison(out[0], NULL, true), 0);
    ck_assert_int_eq(mf_verify(&v, &verdict), -ENODATA);
    ck_assert_int_eq(mf_session_z(session), 0);
    ck_assert_int_eq(mf_verify(&v, &verdict), 1);
    ck_assert_msg(strstr(verdict.reason, "mismatch"), "%s", verdict.reason);
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* ---- a kernel that writes to the device's z ---- */

static void *(*alloc)(struct mf_device *d, size_t bytes);
static size_t bytes_of_z;
static void *z_at; /* latest allocation of bytes_of_z bytes */

static void *alloc_and_note(struct mf_device *d, size_t bytes)
{
    void *at = alloc(d, bytes);
    z_at = bytes == bytes_of_z ? at : z_at;
    return at;
}

static void overwrite_z(struct mf_device *d)
{
    void *garbage = malloc(bytes_of_z);
    ck_assert(garbage && z_at);
    memset(garbage, 0x42, bytes_of_z);
    ck_assert_int_eq(d->ops->copy(d, z_at, garbage, bytes_of_z), 0);
    free(garbage);
}

/* If a kernel overwrites the device's z, the next step receives a newly created z. A kernel with a correct
 * output therefore still passes. */
MF_TEST(overwritten_z_recreated)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);
    const struct mf_tensor_spec z = {.tensor = MF_TENSOR_Z, .format = MF_FORMAT_BF16, .order = "slot"};
    const struct mf_device_ops *const own = d->ops;
    struct mf_device_ops ops = *own;
    struct mf_guarded *out[2];
    struct mf_verdict verdict;

    alloc = ops.alloc;
    ops.alloc = alloc_and_note;
    bytes_of_z = (size_t)(s.token * s.topk * s.model_dim) * sizeof(float);
    ck_assert_int_eq(mf_session_output(session, &z, out), 0);
    const struct mf_verify_input v = {&session->data, &session->ref, out[0], NULL, 0, 0.05, false};
    ck_assert_int_eq(mf_guarded_poison(out[0], NULL, false), 0);
    d->ops = &ops;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mf_device_data_plain_z(session->device_data, &session->data, &session->ref, &z,
                                                out[0]->launch_ref.part[0]),
                         0);
        overwrite_z(d);
    }
    ck_assert_int_eq(mf_verify(&v, &verdict), -ENODATA);
    ck_assert_int_eq(mf_session_z(session), 0);
    ck_assert_int_eq(mf_verify(&v, &verdict), 0);
    d->ops = own;
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* ---- one failing allocation ---- */

static int until_full;

static void *alloc_until_full(struct mf_device *d, size_t bytes)
{
    return until_full-- == 0 ? NULL : alloc(d, bytes);
}

/* Returns the device's functions with alloc_until_full() in place of alloc. */
static struct mf_device_ops failing_alloc_ops(struct mf_device *d)
{
    struct mf_device_ops ops = *d->ops;
    alloc = ops.alloc;
    ops.alloc = alloc_until_full;
    return ops;
}

/* Allocations that a reference makes; each of them fails once. */
#define REFERENCE_ALLOCATIONS 18

MF_TEST(allocation_failure_falls_back_to_host)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    const struct mf_device_ops *const own = d->ops, ops = failing_alloc_ops(d);

    d->ops = &ops;
    for (int i = 0; i < REFERENCE_ALLOCATIONS; i++) {
        struct fake_memfd_store k;
        memfd_store_init(&k);
        until_full = i;
        struct mf_session *session = session_of(d, &s, &k);
        ck_assert_int_lt(until_full, 0);
        ck_assert_ptr_null(session->device_data);
        ck_assert_int_eq(k.n, 3);
        ck_assert_ptr_nonnull(session->data.w1.part[0]);
        check_weight(session, &s, MF_TENSOR_W1);
        check_weight(session, &s, MF_TENSOR_W2);
        check_reference(session, &s);
        (void)mf_session_free(session);
    }
    d->ops = own;
    (void)mf_device_close(d);
}

/* If an allocation for a step fails, cached reference data of another step's outputs is freed. */
MF_TEST(cached_reference_freed_for_step)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);
    const struct mf_device_ops *const own = d->ops, ops = failing_alloc_ops(d);

    probe(session, "two_stage", "s2_");
    d->ops = &ops;
    until_full = 0;
    probe(session, "move", "quant1_");
    ck_assert_int_lt(until_full, 0);
    ck_assert(!mf_session_free_device_cache(session));
    d->ops = own;
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* A step that writes z passes if any one of its allocations fails. */
MF_TEST(z_verified_after_allocation_failure)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    const struct mf_device_ops *const own = d->ops, ops = failing_alloc_ops(d);
    int i = 0;
    do {
        struct mf_session *session = session_of(d, &s, NULL);
        d->ops = &ops;
        until_full = i++;
        probe_one(session, "two_stage", "s2_", MF_TENSOR_Z);
        d->ops = own;
        (void)mf_session_free(session);
    } while (until_full < 0);
    ck_assert_int_gt(i, 8); /* outputs, inputs, weight, verification */
    (void)mf_device_close(d);
}

/* If z is too large for the device to keep, the host computes it in the reference block from the start. */
MF_TEST(large_z_stays_on_host)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    d->info.memory_bytes = 8 * (uint64_t)(s.token * s.topk * s.model_dim) * sizeof(float) - 1;
    struct mf_session *session = session_of(d, &s, NULL);

    ck_assert_ptr_nonnull(session->device_data);
    ck_assert_ptr_nonnull(session->ref.z);
    check_reference(session, &s);
    probe_one(session, "two_stage", "s2_", MF_TENSOR_Z);
    probe(session, "move", "combine_z");
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* ---- a layer that does not fit into host memory ---- */

/* The experts' weights exceed the available host memory; each token uses one expert. */
static struct mf_shape larger_than_host_memory(void)
{
    struct mf_shape s = a_shape();
    s.token = s.topk = 1;
    s.expert = 65535;
    s.model_dim = 256;
    double expert_rows = (double)mf_memory_available() / s.expert / s.model_dim / 3;
    s.inter_dim = ((int)expert_rows / 128 + 1) * 128;
    return s;
}

MF_TEST(layer_larger_than_host_memory)
{
    const struct mf_shape s = larger_than_host_memory();
    struct mf_device *d = device();
    struct mf_device *cpu = NULL;
    struct mf_session *session = NULL;
    char why[MF_REASON_MAX];
    const struct mf_session_args args = {.shape = s, .options = &options};
    struct mf_session_args on_device = args, on_host = args;

    on_device.device = d;
    ck_assert_msg(mf_session_new(&on_device, why, sizeof(why), &session) == 0, "%s", why);
    ck_assert_ptr_nonnull(session->device_data);
    (void)mf_session_free(session);
    (void)mf_device_close(d);
    ck_assert_int_eq(mf_device_open("cpu:0", why, sizeof(why), &cpu), 0);
    on_host.device = cpu;
    ck_assert_int_eq(mf_session_new(&on_host, why, sizeof(why), &session), -ENOMEM);
    ck_assert_msg(strstr(why, "GB of memory") != NULL, "%s", why);
    (void)mf_device_close(cpu);
}

/* ---- a step that overwrites the inputs of other steps ---- */

static void overwrite(struct mf_session *session, const struct mf_tensor_ref *launch_ref, size_t bytes)
{
    void *garbage = malloc(bytes);
    ck_assert_ptr_nonnull(garbage);
    memset(garbage, 0x42, bytes);
    ck_assert_int_eq(session->device->ops->copy(session->device, launch_ref->part[0], garbage, bytes), 0);
    free(garbage);
}

/* The next step still passes if a step overwrote its weight or another input. If _i is 1, the host creates
 * all data. */
MF_TEST(overwritten_inputs_restored, .rows = 2)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    const struct mf_device_ops *const own = d->ops, ops = failing_alloc_ops(d);
    d->ops = &ops;
    until_full = _i ? 0 : -1;
    struct mf_session *session = session_of(d, &s, NULL);
    d->ops = own;
    ck_assert_int_eq(session->device_data == NULL, _i);

    probe(session, "two_stage", "s2_");
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            overwrite(session, &session->weights[session->n_weights - 1].launch_ref, (size_t)s.expert * 64);
        for (size_t k = 0; i == 1 && k < session->n_inputs; k++) {
            if (session->inputs[k].buffer.tensor_spec.tensor == MF_TENSOR_H)
                overwrite(session, &session->inputs[k].buffer.launch_ref, 64);
        }
        struct mf_unit_result r = result_of(session, "two_stage", "s2_", MF_TENSOR_N_);
        ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
        ck_assert_msg(strstr(r.reason, "passed after the inputs were restored; "), "%s", r.reason);
    }
    probe(session, "two_stage", "s2_");
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* State of overwrite_and_begin, which overwrites a weight at one of the race's begin messages. */
static struct mf_session *victim;
static int overwritten_at, n_begun;

static int overwrite_and_begin(struct mf_sink *s, int64_t id, bool is_pipeline, int64_t limit_ms)
{
    if (n_begun++ == overwritten_at) {
        overwrite(victim, &victim->weights[1].launch_ref, (size_t)victim->shape.expert * 64);
        victim->step_has_run = true;
    }
    return begin(s, id, is_pipeline, limit_ms);
}

/* The weight is overwritten at begin message _i; 0: before the race. */
MF_TEST(overwritten_inputs_restored_in_race, .rows = 7)
{
    static const struct mf_race_plan plan = {.stages = {{2, 1}}, .n_stages = 1, .fresh = 2, .alpha = 0.05};
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);
    struct test_offer o = {
        {take_step, mf_offer_ignore_rejection}, "one_stage", "one_", MF_TENSOR_N_, {0}, false};
    struct test_sink sink = {.sink = {.begin = overwrite_and_begin, .result = take, .race = take_outcome}};

    probe(session, "one_stage", "one_");
    ck_assert_uint_eq(session->n_weights, 2);
    victim = session;
    overwritten_at = _i - 1;
    n_begun = 0;
    if (_i == 0)
        overwrite(session, &session->weights[1].launch_ref, (size_t)s.expert * 64);
    ck_assert_int_ge(mf_enumerate(&d->info, &s, "one_stage", &o.offer), 0);
    const struct mf_race_entry entry = {.id = 1, .forecast_us = 100, .steps = &o.step.step, .n_steps = 1};
    ck_assert_int_eq(mf_session_race(session, &entry, 1, &plan, &sink.sink), 0);
    ck_assert_uint_eq(sink.n, 1);
    ck_assert_msg(sink.results[0].status == MF_STATUS_OK, "%s", sink.results[0].reason);
    ck_assert_int_ge(n_begun, 6);
    /* Verification follows only the first four begin messages. */
    bool renewed = strstr(sink.results[0].reason, "passed after the inputs were restored; ") != NULL;
    ck_assert_msg(renewed == (_i >= 1 && _i <= 4), "%s", sink.results[0].reason);
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

/* A step that fails again on fresh inputs is rejected. */
MF_TEST(failing_on_fresh_inputs_is_wrong)
{
    const struct mf_shape s = a_shape();
    struct mf_device *d = device();
    struct mf_session *session = session_of(d, &s, NULL);

    session->options.err_ratio = -1;
    for (int i = 0; i < 2; i++) {
        struct mf_unit_result r = result_of(session, "move", "quant1_", MF_TENSOR_N_);
        ck_assert_int_eq(r.status, MF_STATUS_WRONG);
        ck_assert_msg(strstr(r.reason, "mismatch"), "%s", r.reason);
    }
    (void)mf_session_free(session);
    (void)mf_device_close(d);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
