#include "server/http/events.h"

#include "server/farm/bus.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    int64_t id, batch;
    char *text;
    size_t len;
};

struct mf_events {
    size_t max_events, max_bytes, bytes;
    size_t first, n;     /* entries[(first + i) % max_events], i < n */
    int64_t floor, last; /* both -1 before the first event */
    struct entry *entries;
};

int mf_events_new(size_t max_events, size_t max_bytes, struct mf_events **ret)
{
    _cleanup_(mf_events_freep) struct mf_events *e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    e->entries = calloc(max_events, sizeof(*e->entries));
    if (!e->entries)
        return -ENOMEM;
    e->max_events = max_events;
    e->max_bytes = max_bytes;
    e->floor = e->last = -1;
    *ret = MF_TAKE(e);
    return 0;
}

static void drop_first(struct mf_events *e)
{
    struct entry *entry = &e->entries[e->first];
    e->floor = entry->id;
    e->bytes -= entry->len;
    free(entry->text);
    entry->text = NULL;
    e->first = (e->first + 1) % e->max_events;
    e->n--;
}

struct mf_events *mf_events_free(struct mf_events *e)
{
    if (!e)
        return NULL;
    while (e->n > 0)
        drop_first(e);
    free(e->entries);
    free(e);
    return NULL;
}

int mf_event_format(struct mf_buf *out, int64_t id, const char *kind, const char *body)
{
    mf_buf_addf(out, "id: %" PRId64 "\nevent: %s\ndata: ", id, kind);
    size_t at = out->len;
    mf_buf_adds(out, body);
    if (mf_buf_error(out) == 0) {
        for (char *p = out->data + at; *p; p++)
            if (*p == '\n' || *p == '\r')
                *p = ' ';
    }
    return mf_buf_adds(out, "\n\n");
}

int mf_events_push(struct mf_events *e, const struct mf_bus_event *event)
{
    if (e->last >= 0 && event->id <= e->last)
        return 0;

    struct mf_buf text;
    mf_buf_init(&text, e->max_bytes);
    int r = mf_event_format(&text, event->id, event->kind, event->body);
    size_t len = text.len;
    char *taken = r < 0 ? NULL : mf_buf_take(&text);
    mf_buf_release(&text);

    if (!taken || event->id != e->last + 1) {
        while (e->n > 0)
            drop_first(e);
        e->floor = taken ? event->id - 1 : event->id;
    }
    e->last = event->id;
    if (!taken)
        return r < 0 ? r : -ENOMEM;
    while (e->n > 0 && (e->n == e->max_events || e->bytes + len > e->max_bytes))
        drop_first(e);
    e->entries[(e->first + e->n++) % e->max_events] = (struct entry){event->id, event->batch, taken, len};
    e->bytes += len;
    return 0;
}

int mf_events_read(const struct mf_events *e, int64_t batch, int64_t *cursor, struct mf_buf *out, size_t max)
{
    if (e->last < 0 || *cursor >= e->last)
        return 0;
    if (*cursor < e->floor)
        return -ESTALE;
    for (size_t i = (size_t)(*cursor - e->floor); i < e->n && out->len < max; i++) {
        const struct entry *entry = &e->entries[(e->first + i) % e->max_events];
        if (batch == 0 || entry->batch == batch) {
            int r = mf_buf_add(out, entry->text, entry->len);
            if (r < 0)
                return r;
        }
        *cursor = entry->id;
    }
    return 0;
}
