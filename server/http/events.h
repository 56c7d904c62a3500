/* Events on their way to streams: the text form, and a ring of the latest ones.
 *
 * The ring knows every event with floor < id <= last. A stream is a cursor into it and holds no events of its
 * own, so a slow client costs one chunk; one that falls behind the floor reads the table `event`. Belongs to the
 * HTTP thread. */
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

/* Takes an event; an id that does not follow the last one empties the ring first. One at or below the last is
 * passed over. */
int mf_events_push(struct mf_events *e, const struct mf_bus_event *event);
/* Appends the text of the events after *cursor that concern the batch (0: all), about max bytes at most, and
 * moves *cursor behind what was looked at. 0, or -ESTALE: events after *cursor are no longer in the ring. */
int mf_events_read(const struct mf_events *e, int64_t batch, int64_t *cursor, struct mf_buf *out, size_t max);

/* "id: 7\nevent: task\ndata: {…}\n\n"; line ends within the body become spaces. */
int mf_event_format(struct mf_buf *out, int64_t id, const char *kind, const char *body);
