/* Two clocks: CLOCK_MONOTONIC for durations and deadlines, CLOCK_REALTIME for what people read. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t mf_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline int64_t mf_now_ms(void)
{
    return (int64_t)(mf_now_ns() / 1000000u);
}

/* Milliseconds since 1970. */
static inline int64_t mf_wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
