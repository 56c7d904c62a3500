/* Layers: open, query, weight conversion, close. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fmoe/private.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"

static int set_number(struct mf_shape *s, const char *column, int64_t value, struct fmoe_error *error)
{
    char text[24];
    const char *why = "";

    (void)snprintf(text, sizeof(text), "%lld", (long long)value);
    return mf_shape_set(s, column, text, &why) == 0
               ? 0
               : fmoe_fail(error, -EINVAL, "%s is %s: expected %s",
                           strcmp(column, "expert") == 0 ? "experts" : column, text, why);
}

static int set_text(struct mf_shape *s, const char *column, const char *text, struct fmoe_error *error)
{
    const char *why = "";

    if (!text)
        return fmoe_fail(error, -EINVAL, "%s is NULL", column);
    return mf_shape_set(s, column, text, &why) == 0
               ? 0
               : fmoe_fail(error, -EINVAL, "%s is '%s': expected %s", column, text, why);
}

static int read_model(const struct fmoe_layer_model *m, struct mf_shape *ret, struct fmoe_error *error)
{
    const struct {
        const char *column;
        int64_t value;
    } numbers[] = {{"token", 1},
                   {"model_dim", m->model_dim},
                   {"inter_dim", m->inter_dim},
                   {"expert", m->experts},
                   {"topk", m->topk},
                   {"use_g1u1", m->use_g1u1},
                   {"doweight_stage1", m->doweight_stage1}};
    const struct {
        const char *column, *text;
    } texts[] = {{"act_type", m->act_type},   {"dtype", m->dtype},   {"q_dtype_a", m->q_dtype_a},
                 {"q_dtype_w", m->q_dtype_w}, {"q_type", m->q_type}, {MF_SHAPE_FORM, m->form ? m->form : ""}};
    const char *column, *why;
    int r = 0;

    *ret = (struct mf_shape){0};
    for (size_t i = 0; i < MF_ARRAY_LEN(numbers) && r == 0; i++)
        r = set_number(ret, numbers[i].column, numbers[i].value, error);
    for (size_t i = 0; i < MF_ARRAY_LEN(texts) && r == 0; i++)
        r = set_text(ret, texts[i].column, texts[i].text, error);
    if (r == 0 && mf_shape_check(ret, &column, &why) < 0)
        r = fmoe_fail(error, -EINVAL, "%s: %s", column, why);
    if (r == 0 && (m->max_tokens < 1 || m->max_tokens > FMOE_TOKENS_MAX))
        r = fmoe_fail(error, -EINVAL, "max_tokens is %lld: expected 1 to %lld", (long long)m->max_tokens,
                      (long long)FMOE_TOKENS_MAX);
    return r;
}

static int read_layouts(const struct fmoe_layer_model *m, struct model *ret, struct fmoe_error *error)
{
    const char *const names[2] = {m->w1_layout, m->w2_layout};

    for (int i = 0; i < 2; i++) {
        const struct mf_layout *layout = names[i] ? mf_layout_find(names[i]) : NULL;
        if (names[i] && !layout)
            return fmoe_fail(error, -EINVAL, "w%d_layout is '%s': unknown layout", i + 1, names[i]);
        ret->layout[i] = layout ? layout->name : NULL;
    }
    return 0;
}

static int load_on_device(struct fmoe *f, struct fmoe_error *error)
{
    int r = f->device->ops->own_memory && !f->on_device.remap.function
                ? mf_on_device_open(f->device, &f->on_device)
                : 0;

    return r < 0 ? fmoe_fail(error, -ENOTSUP, "%s", f->device->open_error) : 0;
}

static int open_layer(struct fmoe *f, const struct fmoe_layer_model *m, struct fmoe_layer *l,
                      struct fmoe_error *error)
{
    struct model model = {.max_tokens = m->max_tokens};
    struct plans *plans;
    int r = read_model(m, &model.shape, error);

    if (r == 0)
        r = read_layouts(m, &model, error);
    if (r < 0)
        return r;
    r = f->device->ops->enter(f->device);
    if (r < 0)
        return fmoe_fail(error, r, "the device has failed: restart the process");
    r = fmoe_plans_ref(f, &model, error, &plans);
    if (r < 0)
        return r;
    r = load_on_device(f, error);
    if (r == 0 && m->workspace_bytes > 0 && plans->workspace > m->workspace_bytes)
        r = fmoe_fail(error, -EINVAL, "workspace_bytes is %zu: expected 0, or at least %zu for %lld tokens",
                      m->workspace_bytes, plans->workspace, (long long)m->max_tokens);
    if (r < 0) {
        fmoe_plans_unref(f, plans, false);
        return r;
    }
    l->f = f;
    l->shape = model.shape;
    l->max_tokens = model.max_tokens;
    memcpy(l->weight, plans->weight, sizeof(l->weight));
    l->workspace = MF_MAX(plans->workspace, m->workspace_bytes);
    atomic_store(&l->now, plans);
    return 0;
}

static void update_workspace(struct fmoe *f)
{
    size_t largest = 0;

    for (const struct fmoe_layer *l = f->layers; l; l = l->next)
        largest = MF_MAX(largest, l->closed ? 0 : l->workspace);
    atomic_store(&f->workspace, largest);
}

int fmoe_layer_open(struct fmoe *f, const struct fmoe_layer_model *model, struct fmoe_error *error,
                    struct fmoe_layer **ret)
{
    struct fmoe_layer *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    (void)pthread_mutex_lock(&f->lock);
    r = open_layer(f, model, l, error);
    if (r == 0) {
        l->next = f->layers;
        f->layers = l;
        update_workspace(f);
        *ret = l;
    }
    (void)pthread_mutex_unlock(&f->lock);
    if (r < 0)
        free(l);
    return r;
}

void fmoe_layer_close(struct fmoe_layer *l)
{
    struct fmoe *f;
    bool busy;

    if (!l)
        return;
    f = l->f;
    (void)f->device->ops->enter(f->device);
    busy = f->device->ops->sync(f->device) == -EBUSY;
    (void)pthread_mutex_lock(&f->lock);
    /* The device cannot be synchronised during a capture, so calls of this layer may still be queued in a
     * stream. The code of these calls is then never unloaded. */
    fmoe_plans_unref(f, atomic_exchange(&l->now, NULL), busy);
    l->closed = true;
    update_workspace(f);
    fmoe_layer_free_if_reported(l);
    (void)pthread_mutex_unlock(&f->lock);
}

void fmoe_layer_free_if_reported(struct fmoe_layer *l)
{
    if (!l->closed)
        return;
    for (int i = 0; i < FMOE_BUCKETS; i++) {
        if (atomic_load(&l->misses[i]) != l->reported[i])
            return;
    }
    for (struct fmoe_layer **at = &l->f->layers; *at; at = &(*at)->next) {
        if (*at == l) {
            *at = l->next;
            break;
        }
    }
    free(l);
}

size_t fmoe_workspace_bytes(const struct fmoe_layer *l)
{
    return l->workspace;
}

size_t fmoe_max_workspace_bytes(const struct fmoe *f)
{
    return atomic_load(&f->workspace);
}

/* ---- weights ---- */

int fmoe_layer_weight(const struct fmoe_layer *l, int which, struct fmoe_weight *ret)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n;

    if (which != 1 && which != 2)
        return -EINVAL;
    *ret = (struct fmoe_weight){.layout = l->weight[which - 1].order};
    n = mf_tensor_spec_parts(&l->weight[which - 1], &l->shape, parts);
    for (int i = 0; i < n && i < 3; i++)
        ret->bytes[i] = (size_t)mf_part_bytes(&parts[i]);
    return n < 0 ? n : 0;
}

int fmoe_layer_pack(const struct fmoe_layer *l, int which, const void *const from[3], void *const to[3])
{
    struct fmoe_weight w;
    struct mf_tensor_spec row;
    int r = fmoe_layer_weight(l, which, &w);

    if (r < 0)
        return r;
    row = mf_plain_w(&l->shape, fmoe_weight_tensor(which - 1), "row");
    for (int32_t e = 0; e < l->shape.expert && r == 0; e++) {
        struct mf_tensor_ref in = {0}, out = {0};
        for (int i = 0; i < 3; i++) {
            size_t at = (size_t)e * (w.bytes[i] / (size_t)l->shape.expert);
            in.part[i] = w.bytes[i] > 0 ? (char *)(uintptr_t)from[i] + at : NULL;
            out.part[i] = w.bytes[i] > 0 ? (char *)to[i] + at : NULL;
        }
        r = mf_layout_convert_weight(&l->shape, &row, &l->weight[which - 1], &in, &out);
    }
    return r;
}

int fmoe_layer_pack_device(const struct fmoe_layer *l, int which, const void *const from[3],
                           void *const to[3], void *stream)
{
    struct mf_device *device = l->f->device;
    struct mf_tensor_ref in = {0}, out = {0};
    int r;

    if (!device->ops->own_memory)
        return fmoe_layer_pack(l, which, from, to);
    if (which != 1 && which != 2)
        return -EINVAL;
    for (int i = 0; i < 3; i++) {
        in.part[i] = (void *)(uintptr_t)from[i];
        out.part[i] = to[i];
    }
    r = device->ops->enter(device);
    return r < 0 ? r
                 : mf_on_device_pack(&l->f->on_device, &l->shape, &l->weight[which - 1], &in, &out, stream);
}

int fmoe_remap_ids(const struct fmoe_layer *l, const int32_t *expert_map, int64_t tokens, const int32_t *ids,
                   int32_t *to, struct fmoe_error *error)
{
    struct mf_shape s = l->shape;
    const char *why = "out of memory";
    int r;

    s.token = tokens;
    r = mf_fmoe_remap_ids(&s, expert_map, ids, to, &why);
    return r < 0 ? fmoe_fail(error, r, "%s", why) : 0;
}

int fmoe_remap_ids_device(const struct fmoe_layer *l, const int32_t *expert_map, int64_t tokens,
                          const void *ids, int32_t ids_type, void *to, void *stream)
{
    const struct mf_remap remap = {expert_map, ids, to, ids_type == FMOE_INT64};
    struct mf_device *device = l->f->device;
    struct mf_shape s = l->shape;
    int r;

    if (s.ep_experts <= 0 || tokens < 1 || tokens > FMOE_TOKENS_MAX ||
        (ids_type != FMOE_INT32 && ids_type != FMOE_INT64))
        return -EINVAL;
    s.token = tokens;
    if (!device->ops->own_memory) {
        mf_remap_on_cpu(&s, &remap);
        return 0;
    }
    r = device->ops->enter(device);
    return r < 0 ? r : mf_on_device_remap(&l->f->on_device, &s, &remap, stream);
}

/* ---- query ---- */

int fmoe_served(struct fmoe_layer *l, int64_t tokens, struct fmoe_served *ret)
{
    const struct plan *p;

    if (tokens < 1 || tokens > l->max_tokens)
        return -EINVAL;
    (void)pthread_mutex_lock(&l->f->lock);
    *ret = (struct fmoe_served){.bucket = mf_token_bucket(tokens)};
    p = &atomic_load(&l->now)->by_bucket[fmoe_bucket_index(ret->bucket)];
    ret->tuned = p->tuned;
    ret->us = p->us;
    ret->line = p->line;
    mf_format(ret->table, sizeof(ret->table), "%s", p->table ? p->table : "");
    mf_format(ret->pipeline, sizeof(ret->pipeline), "%s", p->names);
    ret->modelled_us = p->modelled_us;
    mf_format(ret->reason, sizeof(ret->reason), "%s", p->reason);
    (void)pthread_mutex_unlock(&l->f->lock);
    return 0;
}
