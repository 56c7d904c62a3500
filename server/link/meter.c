#include "server/link/meter.h"

#include "common/base/cleanup.h"

#include <errno.h>
#include <stdbool.h>

#define GREETING_SIZE 64
#define VERSION_AT    10 /* offset of the major version in the greeting */
#define FLAG_MORE     1  /* another frame of the message follows */
#define FLAG_LONG     2  /* the length has eight bytes instead of one */
#define FLAG_COMMAND  4  /* not part of a message */

static bool is_greeting_byte(size_t at, uint8_t byte)
{
    if (at == 0)
        return byte == 0xff;
    return at != VERSION_AT || byte >= 3;
}

static size_t head_size(const struct mf_meter *m)
{
    return m->n_head > 0 && (m->head[0] & FLAG_LONG) ? 9 : 2;
}

static uint64_t frame_size(const struct mf_meter *m)
{
    uint64_t size = 0;
    for (size_t i = 1; i < head_size(m); i++)
        size = size << 8 | m->head[i];
    return size;
}

static int count_frame(struct mf_meter *m)
{
    if (m->head[0] & FLAG_COMMAND)
        return 0;
    m->n_frames = m->head[0] & FLAG_MORE ? m->n_frames + 1 : 0;
    return m->n_frames >= MF_METER_FRAMES_MAX ? -E2BIG : 0;
}

/* Reads one byte of a frame's head. Returns 0, -EMSGSIZE or -E2BIG. */
static int read_head(struct mf_meter *m, uint8_t byte, uint64_t frame_max, uint64_t *cost)
{
    m->head[m->n_head++] = byte;
    if (m->n_head < head_size(m))
        return 0;
    m->frame_left = frame_size(m);
    m->n_head = 0;
    *cost += MF_METER_FRAME_COST;
    return m->frame_left > frame_max ? -EMSGSIZE : count_frame(m);
}

int mf_meter_read(struct mf_meter *m, const uint8_t *data, size_t n, uint64_t frame_max, uint64_t *cost)
{
    size_t i = 0;
    for (; i < n && m->n_greeting < GREETING_SIZE; i++) {
        if (!is_greeting_byte(m->n_greeting++, data[i]))
            return -EPROTO;
    }
    while (i < n) {
        if (m->frame_left > 0) {
            uint64_t part = MF_MIN(m->frame_left, (uint64_t)(n - i));
            m->frame_left -= part;
            *cost += part;
            i += part;
        } else {
            int r = read_head(m, data[i++], frame_max, cost);
            if (r < 0)
                return r;
        }
    }
    return 0;
}
