/* Server-sent events: text format, and a ring buffer of the latest events.
 *
 * The ring holds every event with floor < id <= last. A stream is a cursor into the ring and holds no events
 * of its own, so a slow client takes the memory of one chunk only. A stream that falls behind the floor reads
 * the table `event`. Used by the HTTP thread only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"

struct mf_bus_event;
struct mf_events;

int mf_events_new(size_t max_events, size_t max_bytes, struct mf_events **ret);
struct mf_events *mf_events_free(struct mf_events *e);
MF_DEFINE_CLEANUP(struct mf_events *, mf_events_free);

/* Adds an event. If the id does not follow the last id, empties the ring first. Ignores an event whose id is
 * not larger than the last id. */
int mf_events_push(struct mf_events *e, const struct mf_bus_event *event);
/* Appends the text of events after *cursor that belong to the batch (0: any batch), at most about max bytes,
 * and advances *cursor past the events examined. Returns 0, or -ESTALE if the ring no longer holds all events
 * after *cursor. */
int mf_events_read(const struct mf_events *e, int64_t batch, int64_t *cursor, struct mf_buf *out, size_t max);

/* Appends "id: 7\nevent: task\ndata: {…}\n\n"; line breaks in the body become spaces. */
int mf_event_format(struct mf_buf *out, int64_t id, const char *kind, const char *body);
