#include "measure/session/session_data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "measure/session/memfd_cache.h"
#include "measure/session/memory.h"

/* ---- weights ---- */

/* Writes the key of a weight. The key contains everything that the weight depends on: sizes, tensor spec
 * (format, scale, layout) and seed. */
static void weight_key(const struct mf_session *s, const struct mf_tensor_spec *a, char key[MF_KEPT_KEY_MAX])
{
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    mf_tensor_spec_print(a, text);
    mf_format(key, MF_KEPT_KEY_MAX, "%s/E%d.H%d.I%d.g%d/seed%llu", text, (int)s->shape.expert,
              (int)s->shape.model_dim, (int)s->shape.inter_dim, (int)s->shape.use_g1u1,
              (unsigned long long)s->options.seed);
}

static size_t align_page(size_t n)
{
    return (n + 4095) & ~(size_t)4095;
}

static struct mf_tensor_ref weight_ref(const struct mf_part *parts, int n, uint8_t *at)
{
    struct mf_tensor_ref ref = {0};
    for (int i = 0; i < n; i++) {
        ref.part[i] = at;
        at += align_page((size_t)mf_part_bytes(&parts[i]));
    }
    return ref;
}

/* Creates one weight expert by expert. Each thread creates an expert in its own buffer and writes the buffer
 * to the file. Writing whole pages avoids zeroing the pages first. Zeroing would be most of the cost of
 * filling a mapping. */
struct weight_job {
    struct mf_session *s;
    const struct mf_tensor_spec *tensor_spec;
    const struct mf_part *parts;
    int n_parts, fd;
    size_t expert_bytes[MF_PARTS_MAX], at[MF_PARTS_MAX]; /* per part: bytes per expert, offset in the file */
    int error;
};

static int write_all(int fd, const uint8_t *from, size_t n, size_t at)
{
    while (n > 0) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);
        if (done < 0 && errno != EINTR)
            return errno == ENOSPC ? -ENOMEM : -errno;
        if (done > 0) {
            from += done;
            n -= (size_t)done;
            at += (size_t)done;
        }
    }
    return 0;
}

static int make_expert(const struct weight_job *j, int32_t e, const struct mf_tensor_ref *out)
{
    const struct mf_session *s = j->s;
    const struct mf_tensor_spec *a = j->tensor_spec;
    if (strcmp(a->order, "row") == 0)
        return mf_data_expert(&s->shape, a->tensor, s->options.seed, e, out);
    const struct mf_tensor_ref *plain = a->tensor == MF_TENSOR_W1 ? &s->data.w1 : &s->data.w2;
    struct mf_tensor_spec row = mf_plain_w(&s->shape, a->tensor, "row");
    struct mf_tensor_ref from = {0};
    for (int i = 0; i < j->n_parts; i++)
        from.part[i] = (uint8_t *)plain->part[i] + (size_t)e * j->expert_bytes[i];
    return mf_layout_convert_weight(&s->shape, &row, a, &from, out);
}

static void weight_thread(void *context, int thread, int n_threads)
{
    struct weight_job *j = context;
    struct mf_tensor_ref out = {0};
    int r = 0;
    for (int i = 0; i < j->n_parts; i++) {
        out.part[i] = malloc(j->expert_bytes[i]);
        r = out.part[i] ? r : -ENOMEM;
    }
    for (int32_t e = thread; r == 0 && e < j->s->shape.expert; e += n_threads) {
        r = make_expert(j, e, &out);
        for (int i = 0; i < j->n_parts && r == 0; i++)
            r = write_all(j->fd, out.part[i], j->expert_bytes[i], j->at[i] + (size_t)e * j->expert_bytes[i]);
    }
    for (int i = 0; i < j->n_parts; i++)
        free(out.part[i]);
    if (r < 0)
        __atomic_store_n(&j->error, r, __ATOMIC_RELAXED);
}

/* Creates the file of a weight, seals it and adds it to memfd_store. */
static int make_weight(struct mf_session *s, const struct mf_tensor_spec *a, const struct mf_part *parts,
                       int n, size_t bytes, const char *key, struct mf_region *ret)
{
    struct weight_job j = {.s = s, .tensor_spec = a, .parts = parts, .n_parts = n, .fd = -1};
    struct mf_tensor_spec plain = mf_plain_w(&s->shape, a->tensor, a->order);
    if (!mf_tensor_spec_equal(&plain, a))
        return -EINVAL;
    if (bytes > mf_memory_available())
        return -ENOMEM;
    for (int i = 0; i < n; i++) {
        j.expert_bytes[i] = (size_t)(mf_part_bytes(&parts[i]) / s->shape.expert);
        j.at[i] = i > 0 ? j.at[i - 1] + align_page((size_t)mf_part_bytes(&parts[i - 1])) : 0;
    }
    int r = mf_memory_file("moefarm-weight", bytes, &j.fd);
    if (r < 0)
        return r;
    mf_pool_run(weight_thread, &j, mf_pool_threads());
    if (j.error < 0) {
        mf_closep(&j.fd);
        return j.error;
    }
    return mf_region_seal(j.fd, bytes, s->memfd_store, key, ret);
}

/* Opens a weight for launches. If the session has device_data, the device creates the weight. Otherwise finds
 * or creates the weight's file. */
static int open_weight(struct mf_session *s, const struct mf_part *parts, int n, size_t bytes,
                       struct mf_session_weight *w)
{
    char key[MF_KEPT_KEY_MAX];
    if (s->device_data) {
        int r = mf_region_on_device(bytes, s->device, &w->region);
        if (r < 0)
            return r;
        w->launch_ref = weight_ref(parts, n, w->region.copy);
        return mf_device_data_weight(s->device_data, &w->tensor_spec, &w->launch_ref);
    }
    weight_key(s, &w->tensor_spec, key);
    int r = mf_region_find(s->memfd_store, key, bytes, &w->region);
    if (r == -ENOENT)
        r = make_weight(s, &w->tensor_spec, parts, n, bytes, key, &w->region);
    if (r == 0)
        r = mf_region_alloc_copy(&w->region, s->device);
    if (r == 0)
        r = mf_region_push(&w->region);
    if (r < 0)
        return r;
    w->ref = weight_ref(parts, n, w->region.at);
    for (int i = 0; i < n; i++)
        w->launch_ref.part[i] = mf_region_launch_address(&w->region, w->ref.part[i]);
    return 0;
}

static void never_used(struct mf_session_weight *w)
{
    for (int i = 0; i < MF_ROTATIONS_MAX; i++)
        w->used[i] = -1;
}

int mf_session_weight(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_session_weight **ret)
{
    struct mf_part parts[MF_PARTS_MAX];
    size_t bytes = 0;
    for (size_t i = 0; i < s->n_weights; i++) {
        if (mf_tensor_spec_equal(&s->weights[i].tensor_spec, a)) {
            *ret = &s->weights[i];
            return 0;
        }
    }
    if (s->n_weights == MF_ARRAY_LEN(s->weights))
        return -ENOMEM;
    int n = mf_tensor_spec_parts(a, &s->shape, parts);
    if (n < 0)
        return n;
    for (int i = 0; i < n; i++)
        bytes += align_page((size_t)mf_part_bytes(&parts[i]));
    struct mf_session_weight w = {.tensor_spec = *a, .region = MF_REGION_INIT};
    int r = open_weight(s, parts, n, bytes, &w);
    if (r < 0) {
        mf_region_release(&w.region);
        return r;
    }
    never_used(&w);
    s->weights[s->n_weights] = w;
    *ret = &s->weights[s->n_weights++];
    return 0;
}

/* ---- inputs, outputs, orders ---- */

static struct mf_tensor_spec sorted_of(const struct mf_tensor_spec *a)
{
    return (struct mf_tensor_spec){
        .tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted", .block = a->block};
}

static bool is_sorted(const struct mf_tensor_spec *a)
{
    return strcmp(a->order, "sorted") == 0;
}

static int fill_input(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                      const struct mf_tensor_ref *to)
{
    struct mf_tensor_ref sorted = {0};
    struct mf_layer_data data = s->data;
    _cleanup_(mf_freep) int32_t *ids = NULL;
    bool is_index = a->format == MF_FORMAT_INDEX;
    if (is_index && rotation > 0) {
        ids = calloc((size_t)(s->shape.token * s->shape.topk), sizeof(*ids));
        if (!ids)
            return -ENOMEM;
        mf_rotation_ids(&s->rotation, rotation, &s->shape, data.ids, ids);
        data.ids = ids;
    }
    if (is_sorted(a) && !is_index) {
        struct mf_tensor_spec order = sorted_of(a);
        struct mf_tensor_ref launch_ref;
        int r = mf_session_input(s, &order, rotation, &launch_ref, &sorted);
        if (r < 0)
            return r;
    }
    int r = mf_reference_lacks_z(&s->ref, a) ? mf_session_z(s) : 0;
    return r < 0 ? r : mf_reference_tensor_spec(&data, &s->ref, a, &sorted, to);
}

/* Creates an input whose values the host writes. */
static int make_input_on_host(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                              struct mf_guarded *ret)
{
    struct mf_guarded g;
    int r = mf_guarded_new(a, &s->shape, s->device, &g);
    if (r < 0)
        return r;
    r = fill_input(s, a, rotation, &g.ref);
    if (r == 0)
        r = mf_region_push(&g.region);
    if (r == 0)
        *ret = g;
    else
        mf_guarded_release(&g);
    return r;
}

/* Source of an input that is created on the device, so that the host does not have to encode the input. */
enum source {
    SOURCE_NONE,
    SOURCE_X,     /* a copy of the layer's x */
    SOURCE_Z,     /* z of the device; the host has no copy of z */
    SOURCE_GATHER /* gathered from the same tensor in another order */
};

static enum source device_source(const struct mf_session *s, const struct mf_tensor_spec *a)
{
    if (!s->device_data || a->zeroed || a->format == MF_FORMAT_INDEX)
        return SOURCE_NONE;
    if (is_sorted(a))
        return SOURCE_GATHER;
    if (a->tensor == MF_TENSOR_X && a->format == MF_FORMAT_BF16 && a->scale == MF_SCALE_NONE)
        return SOURCE_X;
    return mf_reference_lacks_z(&s->ref, a) ? SOURCE_Z : SOURCE_NONE;
}

static int gather(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                  const struct mf_guarded *g)
{
    const struct mf_tensor_spec plain = mf_gathered_from(a), order = sorted_of(a);
    struct mf_tensor_ref from, sorted;
    int r = mf_session_input(s, &plain, 0, &from, NULL);
    if (r == 0)
        r = mf_session_input(s, &order, rotation, &sorted, NULL);
    return r < 0 ? r : mf_device_data_gather(s->device_data, a, &sorted, &from, &g->launch_ref);
}

/* Creates an input in device memory only. If it returns -ENOTSUP or -ENOMEM, the caller creates the input on
 * the host. */
static int make_input_on_device(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                                struct mf_guarded *ret)
{
    enum source source = device_source(s, a);
    struct mf_guarded g;
    if (source == SOURCE_NONE)
        return -ENOTSUP;
    int r = mf_guarded_new_on_device(a, &s->shape, s->device_data, &g);
    if (r < 0)
        return r;
    if (source == SOURCE_GATHER)
        r = gather(s, a, rotation, &g);
    else if (source == SOURCE_X)
        r = s->device->ops->copy(s->device, g.launch_ref.part[0], s->data.x, g.end[0] - g.start[0]);
    else
        r = mf_device_data_plain_z(s->device_data, &s->data, &s->ref, a, g.launch_ref.part[0]);
    if (r == 0)
        r = mf_guarded_push_bands(&g);
    if (r == 0)
        *ret = g;
    else
        mf_guarded_release(&g);
    return r;
}

int mf_session_input(struct mf_session *s, const struct mf_tensor_spec *a, int rotation,
                     struct mf_tensor_ref *ret_launch_ref, struct mf_tensor_ref *ret_host)
{
    /* Only inputs with routing or in sorted order depend on the rotation. */
    if (!is_sorted(a) && a->tensor != MF_TENSOR_TOPK)
        rotation = 0;
    for (size_t i = 0; i < s->n_inputs; i++) {
        if (s->inputs[i].rotation == rotation && mf_tensor_spec_equal(&s->inputs[i].buffer.tensor_spec, a)) {
            *ret_launch_ref = s->inputs[i].buffer.launch_ref;
            if (ret_host)
                *ret_host = s->inputs[i].buffer.ref;
            return 0;
        }
    }
    struct mf_session_input in = {.rotation = rotation};
    int r = make_input_on_device(s, a, rotation, &in.buffer);
    if (r == -ENOTSUP || r == -ENOMEM)
        r = make_input_on_host(s, a, rotation, &in.buffer);
    if (r < 0)
        return r;
    r = mf_array_grow(&s->inputs, s->n_inputs, &s->cap_inputs, sizeof(*s->inputs));
    if (r == 0)
        r = mf_region_protect(&in.buffer.region);
    if (r < 0) {
        mf_guarded_release(&in.buffer);
        return r;
    }
    s->buffer_bytes += in.buffer.region.bytes;
    s->inputs[s->n_inputs++] = in;
    *ret_launch_ref = in.buffer.launch_ref;
    if (ret_host)
        *ret_host = in.buffer.ref;
    return 0;
}

static int new_output(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_guarded *ret)
{
    return s->device_data ? mf_guarded_new_on_device(a, &s->shape, s->device_data, ret)
                          : mf_guarded_new(a, &s->shape, s->device, ret);
}

/* Appends an output to the session's list, which must have a free entry. */
static int add_output(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_session_output **ret)
{
    struct mf_session_output *made = calloc(1, sizeof(*made));
    int r = made ? new_output(s, a, &made->run[0]) : -ENOMEM;
    if (r < 0) {
        free(made);
        return r;
    }
    r = new_output(s, a, &made->run[1]);
    if (r < 0) {
        mf_guarded_release(&made->run[0]);
        free(made);
        return r;
    }
    s->buffer_bytes += made->run[0].region.bytes + made->run[1].region.bytes;
    s->outputs[s->n_outputs++] = made;
    *ret = made;
    return 0;
}

int mf_session_output(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_guarded *ret[2])
{
    struct mf_session_output *o = NULL;
    for (size_t i = 0; i < s->n_outputs && !o; i++) {
        if (mf_tensor_spec_equal(&s->outputs[i]->run[0].tensor_spec, a))
            o = s->outputs[i];
    }
    if (!o) {
        int r = mf_array_grow(&s->outputs, s->n_outputs, &s->cap_outputs, sizeof(*s->outputs));
        if (r == 0)
            r = add_output(s, a, &o);
        if (r < 0)
            return r;
    }
    ret[0] = &o->run[0];
    ret[1] = &o->run[1];
    return 0;
}

/* Computes the source row of each row in slot order under expert parallelism. Slots of experts on other ranks
 * get -1. */
static int make_slots(const struct mf_session *s, struct mf_session_order *ret)
{
    int64_t rows = s->shape.token * s->shape.topk;
    *ret = (struct mf_session_order){.decoded = MF_TENSOR_N_,
                                     .slots = calloc((size_t)rows, sizeof(*ret->slots))};
    for (int64_t i = 0; ret->slots && i < rows; i++)
        ret->slots[i] = mf_shape_local_expert(&s->shape, s->data.ids[i]) < 0 ? -1 : i;
    return ret->slots ? 0 : -ENOMEM;
}

/* Computes the source row of each row of a decoded weight. Rows of experts without a route get -1. */
static int make_decoded(const struct mf_session *s, const struct mf_tensor_spec *a,
                        struct mf_session_order *ret)
{
    struct mf_part parts[MF_PARTS_MAX];
    int r = mf_tensor_spec_parts(a, &s->shape, parts);
    if (r < 0)
        return r;
    int64_t rows = parts[0].rows, of_expert = rows / s->shape.expert;
    *ret =
        (struct mf_session_order){.decoded = a->tensor, .slots = calloc((size_t)rows, sizeof(*ret->slots))};
    if (!ret->slots)
        return -ENOMEM;
    for (int64_t i = 0; i < rows; i++)
        ret->slots[i] = -1;
    for (int64_t i = 0; i < s->shape.token * s->shape.topk; i++) {
        int64_t first = mf_shape_local_expert(&s->shape, s->data.ids[i]) * of_expert;
        if (first < 0 || ret->slots[first] >= 0)
            continue;
        for (int64_t p = first; p < first + of_expert; p++)
            ret->slots[p] = p;
    }
    return 0;
}

static int make_order(struct mf_session *s, const struct mf_tensor_spec *a, struct mf_session_order *ret)
{
    if (mf_tensor_spec_is_decoded(a))
        return make_decoded(s, a, ret);
    if (!is_sorted(a))
        return make_slots(s, ret);
    struct mf_tensor_spec order = sorted_of(a);
    struct mf_tensor_ref sorted, launch_ref;
    int64_t rows = mf_padded_rows(&s->shape, a->block);
    int r = mf_session_input(s, &order, 0, &launch_ref, &sorted);
    if (r < 0)
        return r;
    *ret = (struct mf_session_order){
        .block = a->block,
        .decoded = MF_TENSOR_N_,
        .slots = calloc((size_t)rows, sizeof(*ret->slots)),
        .tokens = calloc((size_t)rows, sizeof(*ret->tokens)),
    };
    if (!ret->slots || !ret->tokens)
        return -ENOMEM;
    const int32_t *ids = sorted.part[0], *num_valid = sorted.part[3];
    for (int64_t p = 0; p < rows; p++) {
        bool valid = p < num_valid[0] && mf_id_token(ids[p]) < s->shape.token;
        ret->tokens[p] = valid ? mf_id_token(ids[p]) : -1;
        ret->slots[p] = valid ? ret->tokens[p] * s->shape.topk + mf_id_slot(ids[p]) : -1;
    }
    return 0;
}

static void release_order(struct mf_session_order *o)
{
    free(o->slots);
    free(o->tokens);
    *o = (struct mf_session_order){0};
}

int mf_session_source(struct mf_session *s, const struct mf_tensor_spec *a, const int64_t **ret)
{
    struct mf_session_order *o = NULL;
    *ret = NULL;
    bool partial = s->shape.ep_experts > 0 && strcmp(a->order, "slot") == 0;
    enum mf_tensor decoded = mf_tensor_spec_is_decoded(a) ? a->tensor : MF_TENSOR_N_;
    if ((!is_sorted(a) && !partial && decoded == MF_TENSOR_N_) || a->format == MF_FORMAT_INDEX)
        return 0;
    for (size_t i = 0; i < s->n_orders; i++) {
        if (s->orders[i].block == a->block && s->orders[i].decoded == decoded)
            o = &s->orders[i];
    }
    if (!o) {
        if (s->n_orders == MF_ARRAY_LEN(s->orders))
            release_order(&s->orders[--s->n_orders]);
        o = &s->orders[s->n_orders];
        int r = make_order(s, a, o);
        if (r < 0) {
            release_order(o);
            return r;
        }
        s->n_orders++;
    }
    *ret = a->tensor == MF_TENSOR_X ? o->tokens : o->slots;
    return 0;
}

bool mf_session_free_device_cache(struct mf_session *s)
{
    return s->device_data && mf_device_data_drop_cache(s->device_data);
}

int mf_session_reserve(struct mf_session *s, struct mf_region *region, size_t bytes)
{
    if (mf_region_launch_start(region) && region->bytes >= bytes)
        return 0;
    mf_region_release(region);
    if (s->device_data) /* the device fills the region, and the host never reads it */
        return mf_region_on_device(bytes, s->device, region);
    if (bytes > mf_memory_available())
        return -ENOMEM;
    int r = mf_region_new(bytes, region);
    return r < 0 ? r : mf_region_alloc_copy(region, s->device);
}

static void drop_inputs(struct mf_session *s)
{
    for (size_t i = 0; i < s->n_inputs; i++) {
        s->buffer_bytes -= s->inputs[i].buffer.region.bytes;
        mf_guarded_release(&s->inputs[i].buffer);
    }
    s->n_inputs = 0;
}

static void drop_buffers(struct mf_session *s)
{
    drop_inputs(s);
    for (size_t i = 0; i < s->n_outputs; i++) {
        mf_guarded_release(&s->outputs[i]->run[0]);
        mf_guarded_release(&s->outputs[i]->run[1]);
        free(s->outputs[i]);
    }
    s->n_outputs = 0;
    s->buffer_bytes = 0;
}

void mf_session_free_buffers(struct mf_session *s)
{
    drop_buffers(s);
    for (size_t i = 0; i < s->n_orders; i++)
        release_order(&s->orders[i]);
    free(s->inputs);
    free(s->outputs);
}

static int renew_region(struct mf_session *s, struct mf_region *r)
{
    size_t bytes = r->bytes;
    if (bytes == 0)
        return 0;
    mf_region_release(r);
    return mf_session_reserve(s, r, bytes);
}

/* Puts all writable data of a host device into new files, because a Python family may have mapped the old
 * files. */
static int renew_outputs(struct mf_session *s)
{
    int r = renew_region(s, &s->workspace);
    if (r == 0)
        r = renew_region(s, &s->arena);
    for (size_t i = 0; i < s->n_outputs; i++) {
        for (int run = 0; run < 2 && r == 0; run++) {
            struct mf_guarded *old = &s->outputs[i]->run[run], fresh;
            r = new_output(s, &old->tensor_spec, &fresh);
            if (r < 0)
                break;
            mf_guarded_release(old);
            *old = fresh;
        }
    }
    return r;
}

int mf_session_renew(struct mf_session *s)
{
    drop_inputs(s);
    int r = s->device->ops->own_memory ? 0 : renew_outputs(s);
    (void)mf_session_free_device_cache(s);
    for (size_t i = 0; i < s->n_weights && r == 0; i++) {
        struct mf_session_weight *w = &s->weights[i];
        r = w->region.at ? mf_region_push(&w->region)
                         : mf_device_data_weight(s->device_data, &w->tensor_spec, &w->launch_ref);
        never_used(w);
    }
    s->step_has_run = r < 0;
    return r;
}

void mf_session_retry_reason(char reason[MF_REASON_MAX])
{
    char first_verdict[MF_REASON_MAX];
    memcpy(first_verdict, reason, sizeof(first_verdict));
    mf_format(reason, MF_REASON_MAX,
              "passed after the inputs were restored; an earlier step must have overwritten them. First "
              "verdict: %s",
              first_verdict);
}

bool mf_session_data_suspect(const struct mf_session *s)
{
    return s->step_has_run || (s->extra && s->extra->n > 0);
}

bool mf_session_inputs_unprotected(const struct mf_session *s)
{
    return s->step_has_run && s->device->ops->own_memory;
}

void mf_session_trim(struct mf_session *s)
{
    /* each region has an open file */
    if (s->buffer_bytes > s->buffer_max || s->n_inputs + 2 * s->n_outputs > 300)
        drop_buffers(s);
}

void mf_session_phase(struct mf_sink *sink, enum mf_phase phase)
{
    if (sink && sink->phase)
        sink->phase(sink, phase);
}

static void report_progress(void *session)
{
    const struct mf_session *s = session;
    mf_session_phase(s->sink, MF_PHASE_LOAD);
}

struct mf_ahead mf_session_ahead(const struct mf_session *s)
{
    return (struct mf_ahead){.device = &s->device->info,
                             .kind = s->device->ops->kind,
                             .shape = &s->shape,
                             .extra = s->extra,
                             .progress = report_progress,
                             .context = (void *)(uintptr_t)s};
}
