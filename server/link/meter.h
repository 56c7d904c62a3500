/* Measures what a peer's bytes cost in memory: parses the framing of ZMTP 3 (https://rfc.zeromq.org/spec/23)
 * and charges each frame with its length plus a constant. The contents of frames are not looked at, so the
 * meter works for encrypted connections too. Pure functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Memory that libzmq uses for a frame besides its content, rounded up. An empty frame takes two bytes on the
 * wire and 64 in memory. */
#define MF_METER_FRAME_COST 128
/* A message of the protocol has two frames. Frames of encrypted messages are not counted, because CURVE hides
 * which frames end a message. */
#define MF_METER_FRAMES_MAX 8

struct mf_meter {
    size_t n_greeting;   /* bytes of the greeting that were read */
    size_t n_head;       /* bytes of the current frame's head that were read */
    uint8_t head[9];     /* flags and length of the current frame */
    unsigned n_frames;   /* frames of the current message that announced another frame */
    uint64_t frame_left; /* bytes of the current frame that are missing */
};

/* Reads n bytes. Returns 0 and adds their cost to *cost, or -EPROTO if the peer does not speak ZMTP 3, or
 * -EMSGSIZE if a frame is longer than frame_max, or -E2BIG if a message has over MF_METER_FRAMES_MAX
 * frames. */
int mf_meter_read(struct mf_meter *m, const uint8_t *data, size_t n, uint64_t frame_max, uint64_t *cost);
