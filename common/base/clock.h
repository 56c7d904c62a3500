/* Two clocks: CLOCK_MONOTONIC for durations and deadlines, CLOCK_REALTIME for displayed times. */
#pragma once

#include <errno.h>
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

/* Sleeps for the whole time; resumes after signals. */
static inline void mf_sleep_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* Milliseconds since 1970-01-01 UTC. */
static inline int64_t mf_wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
