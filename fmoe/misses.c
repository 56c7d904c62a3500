/* Counts misses, and formats them as the JSON of a report. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/moe/shape_json.h"
#include "fmoe/private.h"

/* maximum number of rows that the coordinator accepts per report; the other rows wait for the next report */
#define ROWS_MAX 4096

uint64_t fmoe_n_misses(const struct fmoe *f)
{
    return atomic_load_explicit(&f->misses, memory_order_relaxed);
}

static int add_miss(cJSON *misses, const struct fmoe_layer *l, int index, uint64_t count)
{
    struct mf_shape s = l->shape;
    cJSON *item = cJSON_CreateObject(), *shape;
    char text[128];

    if (!item || !cJSON_AddItemToArray(misses, item))
        return -ENOMEM;
    s.token = fmoe_bucket_at(index);
    shape = mf_shape_to_json(&s);
    if (!shape || !cJSON_AddItemToObject(item, "shape", shape))
        return -ENOMEM;
    (void)snprintf(text, sizeof(text), "w1=%s w2=%s", l->weight[0].order, l->weight[1].order);
    (void)cJSON_AddStringToObject(item, "layout", text);
    return cJSON_AddNumberToObject(item, "count", (double)count) ? 0 : -ENOMEM;
}

/* Adds the unreported misses to the array. Calls that run at the same time continue to count misses. */
static int add_unreported(struct fmoe *f, cJSON *misses)
{
    int r = 0, n = 0;

    for (struct fmoe_layer *l = f->layers; l; l = l->next) {
        for (int i = 0; i < FMOE_BUCKETS && r == 0; i++) {
            l->reporting[i] = l->reported[i];
            if (n == ROWS_MAX || atomic_load_explicit(&l->misses[i], memory_order_relaxed) == l->reported[i])
                continue;
            l->reporting[i] = atomic_load_explicit(&l->misses[i], memory_order_relaxed);
            r = add_miss(misses, l, i, l->reporting[i] - l->reported[i]);
            n++;
        }
    }
    return r;
}

static void mark_reported(struct fmoe *f)
{
    for (struct fmoe_layer *l = f->layers, *next; l; l = next) {
        next = l->next;
        memcpy(l->reported, l->reporting, sizeof(l->reported));
        fmoe_layer_free_if_reported(l);
    }
}

int fmoe_misses(struct fmoe *f, const char *source, char **ret)
{
    _cleanup_(cJSON_Deletep) cJSON *body = cJSON_CreateObject();
    char host[64] = "", text[128];
    cJSON *misses;
    int r;

    *ret = NULL;
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(text, sizeof(text), "%s/%ld", host, (long)getpid());
    if (!cJSON_AddStringToObject(body, "source", source ? source : text))
        return -ENOMEM;
    mf_device_class_print(&f->device->info.class, text);
    if (!cJSON_AddStringToObject(body, "class", text))
        return -ENOMEM;
    misses = cJSON_AddArrayToObject(body, "misses");
    if (!misses)
        return -ENOMEM;
    (void)pthread_mutex_lock(&f->lock);
    r = add_unreported(f, misses);
    if (r == 0 && cJSON_GetArraySize(misses) > 0) {
        *ret = cJSON_PrintUnformatted(body);
        r = *ret ? 0 : -ENOMEM;
    }
    if (r == 0)
        mark_reported(f);
    (void)pthread_mutex_unlock(&f->lock);
    return r;
}
