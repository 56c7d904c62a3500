#include "emulator/shadow.h"

#include <stdio.h>
#include <stdlib.h>

#define MANY UINT32_MAX /* several lanes or waves */

/* Epochs are numbered from 1, so a zeroed cell was never accessed. */
struct cell {
    uint32_t written, written_wave, writer;
    uint32_t read, read_wave, reader; /* reader: a lane, or MANY lanes of reading_wave */
    uint32_t reading_wave;            /* a wave, or MANY for several waves */
    uint32_t state;                   /* state of the byte's contents */
};
enum { UNWRITTEN, DATA, COPY_PENDING };

struct mf_shadow {
    uint32_t wave_lanes;
    struct cell cells[];
};

struct mf_shadow *mf_shadow_new(size_t bytes, uint32_t wave_lanes)
{
    struct mf_shadow *s = calloc(1, sizeof(*s) + bytes * sizeof(s->cells[0]));
    if (!s)
        return NULL;
    s->wave_lanes = wave_lanes;
    return s;
}

struct mf_shadow *mf_shadow_free(struct mf_shadow *s)
{
    free(s);
    return NULL;
}

static bool follows_write(const struct mf_shadow *s, const struct cell *c, const struct mf_shadow_lane *by)
{
    if (c->written != by->epoch || c->writer == by->lane)
        return true;
    return c->writer / s->wave_lanes == by->wave && c->written_wave != by->wave_epoch;
}

static bool follows_reads(const struct cell *c, const struct mf_shadow_lane *by)
{
    if (c->read != by->epoch || c->reader == by->lane)
        return true;
    return c->reading_wave == by->wave && c->read_wave != by->wave_epoch;
}

static void note_read(struct cell *c, const struct mf_shadow_lane *by)
{
    if (c->read != by->epoch) {
        c->read = by->epoch;
        c->reading_wave = by->wave;
        c->read_wave = by->wave_epoch;
        c->reader = by->lane;
    } else if (c->reading_wave != by->wave) {
        c->reading_wave = c->reader = MANY;
    } else if (c->read_wave != by->wave_epoch) {
        c->read_wave = by->wave_epoch;
        c->reader = by->lane;
    } else if (c->reader != by->lane) {
        c->reader = MANY;
    }
}

enum party { NOBODY, WRITER, READER };

/* Describes why the access is an error. Returns NULL if the access is ordered. */
static const char *error_of(const struct mf_shadow *s, const struct cell *c, const struct mf_shadow_lane *by,
                            enum mf_shadow_event event, enum party *ret_whom)
{
    bool reads = event == MF_SHADOW_READ;
    *ret_whom = WRITER;
    if (event == MF_SHADOW_COPY_DONE)
        return NULL;
    if (c->state == COPY_PENDING)
        return reads ? "reads the destination of a pending copy started by"
                     : "overwrites the destination of a pending copy started by";
    if (!follows_write(s, c, by))
        return reads ? "reads, without a barrier, data written by"
                     : "overwrites, without a barrier, data written by";
    *ret_whom = READER;
    if (!reads && !follows_reads(c, by))
        return "overwrites, without a barrier, data read by";
    *ret_whom = NOBODY;
    return reads && c->state == UNWRITTEN ? "reads uninitialised data" : NULL;
}

static void explain(const struct cell *c, const char *error, enum party party, char *why, size_t why_cap)
{
    if (party == NOBODY)
        (void)snprintf(why, why_cap, "%s", error);
    else if (party == READER && c->reader == MANY)
        (void)snprintf(why, why_cap, "%s several lanes", error);
    else
        (void)snprintf(why, why_cap, "%s lane %u", error, party == READER ? c->reader : c->writer);
}

bool mf_shadow_note(struct mf_shadow *s, const struct mf_shadow_lane *by, enum mf_shadow_event event,
                    size_t at, size_t bytes, char *why, size_t why_cap)
{
    for (size_t i = at; i < at + bytes; i++) {
        struct cell *c = &s->cells[i];
        enum party party;
        const char *error = error_of(s, c, by, event, &party);
        if (error) {
            explain(c, error, party, why, why_cap);
            return false;
        }
        if (event == MF_SHADOW_READ) {
            note_read(c, by);
            continue;
        }
        c->state = event == MF_SHADOW_COPY_START ? COPY_PENDING : DATA;
        c->written = by->epoch;
        c->written_wave = by->wave_epoch;
        c->writer = by->lane;
    }
    return true;
}
