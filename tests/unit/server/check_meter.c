/* The cost of a peer's bytes. */
#include "server/link/meter.h"

#include "support/mf_check.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define GREETING "\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"
#define COST     MF_METER_FRAME_COST

/* bytes: after the greeting */
static const struct {
    const char *bytes;
    size_t n;
    uint64_t cost;
    int error;
} frames[] = {
    {"", 0, 0, 0},                    /* the greeting is free */
    {"\0\0", 2, COST, 0},             /* an empty frame */
    {"\1\0\1\0\0\0", 6, 3 * COST, 0}, /* a message of three empty frames */
    {"\0\5hello", 7, COST + 5, 0},
    {"\0\5hel", 5, COST + 3, 0},                 /* the rest is missing */
    {"\4\2ok\1\3abc\0\1x", 12, 3 * COST + 6, 0}, /* a command, then a message of two frames */
    {"\2\0\0\0\0\0\0\0\3abc", 12, COST + 3, 0},  /* a long frame may be short */
    {"\2\0\0\0\0\0\0\x03\xe8", 9, COST, 0},      /* as long as a frame may be */
    {"\2\0\0\0\0\0\0\x03\xe9", 9, COST, -EMSGSIZE},
    {"\1\0\1\0\1\0\1\0\1\0\1\0\1\0\0\0\1\0", 18, 9 * COST, 0}, /* a message of eight frames, then another */
    {"\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\0\0", 18, 8 * COST, -E2BIG},
    {"\1\0\1\0\1\0\4\0\1\0\1\0\1\0\1\0\1\0", 18, 9 * COST, -E2BIG}, /* a command ends no message */
    {"\3\xff\xff\xff\xff\xff\xff\xff\xff", 9, COST, -EMSGSIZE},
};

/* The cost does not depend on how the bytes are split. */
MF_TEST(counts_frames, .rows = MF_ARRAY_LEN(frames))
{
    uint8_t bytes[64 + 32] = GREETING;
    size_t n = 64 + frames[_i].n;
    ck_assert_uint_le(n, sizeof(bytes));
    memcpy(bytes + 64, frames[_i].bytes, frames[_i].n);
    for (size_t step = 1; step <= n; step++) {
        struct mf_meter m = {0};
        uint64_t cost = 0;
        int r = 0;
        for (size_t at = 0; r == 0 && at < n; at += step)
            r = mf_meter_read(&m, bytes + at, n - at < step ? n - at : step, 1000, &cost);
        ck_assert_int_eq(r, frames[_i].error);
        ck_assert_uint_eq(cost, frames[_i].cost);
    }
}

static const char *const strangers[] = {"GET / HTTP/1.1\r\n", "\xff\0\0\0\0\0\0\0\1\x7f\1\0NULL",
                                        "\x16\3\1\2"};

MF_TEST(refuses_other_protocols, .rows = MF_ARRAY_LEN(strangers))
{
    struct mf_meter m = {0};
    uint64_t cost = 0;
    uint8_t bytes[16] = {0};
    memcpy(bytes, strangers[_i], _i == 1 ? 16 : strlen(strangers[_i]));
    ck_assert_int_eq(mf_meter_read(&m, bytes, sizeof(bytes), 1000, &cost), -EPROTO);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){0});
}
