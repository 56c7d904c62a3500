/* Implements fmoe_run, which allocates no memory, takes no lock, opens no file and does not wait. */
#include <errno.h>

#include "fmoe/private.h"

/* All CPU devices of a process share one thread pool (kernels/core/device.h), so only one call can run at a
 * time. */
static atomic_flag cpu_is_used = ATOMIC_FLAG_INIT;

bool fmoe_cpu_take(void)
{
    return !atomic_flag_test_and_set(&cpu_is_used);
}

void fmoe_cpu_give(void)
{
    atomic_flag_clear(&cpu_is_used);
}

static struct mf_tensor_ref ref_of(const void *const part[3])
{
    return (struct mf_tensor_ref){
        {(void *)(uintptr_t)part[0], (void *)(uintptr_t)part[1], (void *)(uintptr_t)part[2]}};
}

struct mf_fmoe_args fmoe_args_of(const struct fmoe_call *c)
{
    return (struct mf_fmoe_args){
        .x.part = {(void *)(uintptr_t)c->x},
        .topk.part = {(void *)(uintptr_t)c->ids, (void *)(uintptr_t)c->weights},
        .routes = {.wide = c->ids_type == FMOE_INT64, .bf16_weights = c->weights_type == FMOE_BFLOAT16},
        .w1 = ref_of(c->w1),
        .w2 = ref_of(c->w2),
        .calib.part = {(void *)(uintptr_t)c->calib},
        .b1.part = {(void *)(uintptr_t)c->b1},
        .b2.part = {(void *)(uintptr_t)c->b2},
        .y.part = {c->y},
        .arena = c->workspace,
    };
}

static int launch(const struct mf_pipeline *p, const struct fmoe_call *c)
{
    const struct mf_fmoe_args args = fmoe_args_of(c);

    return mf_pipeline_call(p, c->tokens, &args, c->stream);
}

static int serve(struct fmoe_layer *l, const struct fmoe_call *c)
{
    int index = fmoe_bucket_index(mf_token_bucket(c->tokens)), r;
    /* Join a group before reading `now`: fmoe_drop_old frees only plans that it replaced before it waited. */
    _Atomic unsigned *running = &l->f->running[atomic_load(&l->f->epoch) % 2];
    const struct plan *plan;

    (void)atomic_fetch_add(running, 1);
    plan = &atomic_load(&l->now)->by_bucket[index];
    r = launch(plan->pipeline, c);
    if (r == 0 && !plan->tuned) {
        (void)atomic_fetch_add_explicit(&l->misses[index], 1, memory_order_relaxed);
        (void)atomic_fetch_add_explicit(&l->f->misses, 1, memory_order_relaxed);
    }
    (void)atomic_fetch_sub(running, 1);
    return r;
}

static bool is_valid(const struct fmoe_layer *l, const struct fmoe_call *c)
{
    return c->tokens >= 1 && c->tokens <= l->max_tokens &&
           (c->ids_type == FMOE_INT32 || c->ids_type == FMOE_INT64) &&
           (c->weights_type == FMOE_FLOAT32 || c->weights_type == FMOE_BFLOAT16) &&
           c->workspace_bytes >= l->workspace && (uintptr_t)c->workspace % 64 == 0;
}

int fmoe_run(struct fmoe_layer *l, const struct fmoe_call *c)
{
    struct mf_device *device = l->f->device;
    bool is_cpu = !device->ops->own_memory;
    int r;

    if (!is_valid(l, c))
        return -EINVAL;
    if (is_cpu && !fmoe_cpu_take())
        return -EBUSY;
    r = device->ops->enter(device);
    if (r == 0)
        r = serve(l, c);
    if (is_cpu)
        fmoe_cpu_give();
    return r;
}
