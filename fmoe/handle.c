/* Handles: opens a device with its tables, and reloads the tables. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "fmoe/private.h"

const char *fmoe_version(void)
{
    return MF_VERSION;
}

static int read_tables(struct mf_device *device, const char *const *tables, size_t n,
                       struct fmoe_error *error, struct mf_fmoe **ret)
{
    char why[MF_REASON_MAX] = "";
    const struct mf_device_class *class = &device->info.class;
    int r = mf_fmoe_open(device, tables, n, NULL, why, sizeof(why), ret);

    if (r < 0)
        return fmoe_fail(error, r, "%s", why);
    if (mf_fmoe_n_foreign(*ret) > 0)
        r = fmoe_fail(error, -EBADMSG, "%s:%lld: %s", mf_fmoe_foreign_path(*ret, 0),
                      (long long)mf_fmoe_foreign_line(*ret, 0), MF_FMOE_FOREIGN_REASON);
    else if (mf_fmoe_n_rows(*ret) == 0 && mf_fmoe_n_read(*ret) > 0)
        r = fmoe_fail(error, -EBADMSG, "%s: no row for this device's class %s/%d: export with class=%s/%d",
                      tables[0], class->gfx, class->cu_num, class->gfx, class->cu_num);
    if (r < 0)
        *ret = mf_fmoe_close(*ret);
    return r;
}

int fmoe_open(const char *device, const char *const *tables, size_t n, struct fmoe_error *error,
              struct fmoe **ret)
{
    const struct mf_device_open_options how = {.guest = true};
    struct fmoe *f = calloc(1, sizeof(*f));
    char why[MF_REASON_MAX] = "";
    int r;

    if (!f)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_mutex_init(&f->reporter_lock, NULL);
    r = mf_device_open_with(device, &how, why, sizeof(why), &f->device);
    if (r < 0)
        r = fmoe_fail(error, r, "%s", why);
    else if (!f->device->ops->enter)
        r = fmoe_fail(
            error, -EINVAL,
            "device '%s' cannot serve calls: expected cpu:0, hip:amd:<ordinal> or hip:nvidia:<ordinal>",
            device);
    else
        r = read_tables(f->device, tables, n, error, &f->table);
    if (r < 0) {
        fmoe_close(f);
        return r;
    }
    *ret = f;
    return 0;
}

void fmoe_close(struct fmoe *f)
{
    if (!f)
        return;
    fmoe_report_stop(f);
    while (f->layers) {
        struct fmoe_layer *l = f->layers;
        for (int i = 0; i < FMOE_BUCKETS; i++)
            l->reported[i] = atomic_load(&l->misses[i]); /* misses that were not reported yet are discarded */
        if (l->closed)
            fmoe_layer_free_if_reported(l);
        else
            fmoe_layer_close(l);
    }
    f->table = mf_fmoe_close(f->table);
    mf_on_device_close(&f->on_device);
    f->device = mf_device_close(f->device);
    (void)pthread_mutex_destroy(&f->lock);
    (void)pthread_mutex_destroy(&f->reporter_lock);
    free(f);
}

void fmoe_rows(struct fmoe *f, struct fmoe_rows *ret)
{
    const char *model = f->device->info.model, *other;

    (void)pthread_mutex_lock(&f->lock);
    *ret = (struct fmoe_rows){.n = mf_fmoe_n_rows(f->table)};
    ret->n_other_model = mf_fmoe_n_other_model(f->table, model, &other);
    mf_format(ret->model, sizeof(ret->model), "%s", model);
    mf_format(ret->other_model, sizeof(ret->other_model), "%s", other);
    (void)pthread_mutex_unlock(&f->lock);
}

/* ---- reload ---- */

/* Refuses fresh plans that need more workspace than a layer has. */
static int check_workspace(const struct fmoe_layer *l, const struct plans *fresh, struct fmoe_error *error)
{
    for (int i = 0; i < FMOE_BUCKETS && fresh->workspace > l->workspace; i++) {
        const struct plan *p = &fresh->by_bucket[i];
        char line[24];
        mf_format(line, sizeof(line), "%lld", (long long)p->line);
        if (p->pipeline && mf_pipeline_arena_bytes(p->pipeline) == fresh->workspace)
            return fmoe_fail(
                error, -EXDEV,
                "%s%s%s: %lld tokens need %zu bytes of workspace, the layer has %zu: open it with "
                "a larger workspace_bytes",
                p->table ? p->table : "no row", p->table ? ":" : "", p->table ? line : "",
                (long long)fmoe_bucket_at(i), fresh->workspace, l->workspace);
    }
    return 0;
}

/* Makes plans for the layers that use `current`. */
static int remake(struct fmoe *f, const struct mf_fmoe *table, const struct plans *current,
                  struct fmoe_error *error, struct plans **ret)
{
    const struct model stored = {current->model.shape,
                                 current->model.max_tokens,
                                 {current->weight[0].order, current->weight[1].order}};
    struct plans *fresh;
    int r = fmoe_plans_make(f, table, &stored, error, &fresh);

    for (struct fmoe_layer *l = f->layers; l && r == 0; l = l->next) {
        if (atomic_load(&l->now) == current)
            r = check_workspace(l, fresh, error);
        if (r < 0)
            (void)fmoe_plans_free(fresh);
    }
    if (r == 0)
        *ret = fresh;
    return r;
}

/* Puts `fresh` in the place of the plans that *at points to. */
static void switch_plans(struct fmoe *f, struct plans **at, struct plans *fresh)
{
    struct plans *old = *at;

    fresh->model = old->model;
    fresh->n_layers = old->n_layers;
    fresh->next = old->next;
    fresh->old = old;
    *at = fresh;
    for (struct fmoe_layer *l = f->layers; l; l = l->next) {
        if (atomic_load(&l->now) == old)
            atomic_store(&l->now, fresh);
    }
}

static int reload(struct fmoe *f, struct mf_fmoe *table, struct fmoe_error *error)
{
    _cleanup_(mf_freep) struct plans **fresh = NULL;
    size_t n = 0, made = 0;
    int r = 0;

    for (struct plans *p = f->plans; p; p = p->next)
        n++;
    fresh = calloc(n + 1, sizeof(struct plans *));
    if (!fresh)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    for (struct plans *p = f->plans; p && r == 0; p = p->next) {
        r = remake(f, table, p, error, &fresh[made]);
        made += r == 0;
    }
    if (r < 0) {
        while (made > 0)
            (void)fmoe_plans_free(fresh[--made]);
        return r;
    }
    made = 0;
    for (struct plans **at = &f->plans; *at; at = &(*at)->next)
        switch_plans(f, at, fresh[made++]);
    return 0;
}

int fmoe_reload(struct fmoe *f, const char *const *tables, size_t n, struct fmoe_error *error)
{
    struct mf_fmoe *table = NULL;
    int r = f->device->ops->enter(f->device);

    if (r < 0)
        return fmoe_fail(error, r, "the device has failed: restart the process");
    r = read_tables(f->device, tables, n, error, &table);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&f->lock);
    r = reload(f, table, error);
    if (r == 0) {
        struct mf_fmoe *old = f->table;
        f->table = table;
        table = old;
    }
    (void)pthread_mutex_unlock(&f->lock);
    (void)mf_fmoe_close(table);
    return r;
}

/* Waits for the calls that began before, twice: a call may have read the epoch just before it changed. */
static void wait_for_calls(struct fmoe *f)
{
    for (int i = 0; i < 2; i++) {
        unsigned group = atomic_fetch_add(&f->epoch, 1) % 2;
        while (atomic_load(&f->running[group]) > 0)
            (void)sched_yield();
    }
}

int fmoe_drop_old(struct fmoe *f)
{
    int r = f->device->ops->enter(f->device);

    (void)pthread_mutex_lock(&f->lock);
    wait_for_calls(f);
    if (r == 0)
        r = f->device->ops->sync(f->device);
    for (struct plans *p = f->plans; p && r != -EBUSY; p = p->next)
        p->old = fmoe_plans_free(p->old);
    (void)pthread_mutex_unlock(&f->lock);
    return r;
}
