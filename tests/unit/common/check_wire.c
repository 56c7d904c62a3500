#include "common/net/wire.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

/* The header of a RESULT message with sequence 0x0102030405060708. */
static const uint8_t good[MF_WIRE_HEADER_SIZE] = {'M', 'F', 1, 2, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};

MF_TEST(header_bytes)
{
    uint8_t out[MF_WIRE_HEADER_SIZE];
    memset(out, 0xee, sizeof(out));
    mf_wire_encode(&(struct mf_wire_header){MF_MESSAGE_RESULT, UINT64_C(0x0102030405060708)}, out);
    ck_assert_mem_eq(out, good, sizeof(good));
}

MF_TEST(every_type_round_trips, .rows = MF_MESSAGE_N_)
{
    static const uint64_t sequences[] = {0, 1, 255, 256, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < MF_ARRAY_LEN(sequences); i++) {
        struct mf_wire_header h = {(enum mf_message)_i, sequences[i]}, back = {0};
        uint8_t bytes[MF_WIRE_HEADER_SIZE];
        int version = -1;
        mf_wire_encode(&h, bytes);
        ck_assert_int_eq(mf_wire_decode(bytes, sizeof(bytes), &back, &version), 0);
        ck_assert_int_eq(back.type, h.type);
        ck_assert_uint_eq(back.sequence, h.sequence);
        ck_assert_int_eq(version, MF_WIRE_VERSION);
    }
}

static const char *const type_names[] = {"HELLO", "READY",  "RESULT", "BEAT",   "BYE",   "WELCOME", "UNIT",
                                         "ACK",   "CANCEL", "DRAIN",  "REFUSE", "ENROL", "ENROLLED"};

/* The number of a message type is part of the protocol, so it must not change. */
MF_TEST(message_type_numbers, .rows = MF_ARRAY_LEN(type_names))
{
    ck_assert_str_eq(mf_message_name((enum mf_message)_i), type_names[_i]);
}

/* A valid header with one byte replaced. */
static const struct {
    int at, byte, expect, version;
} damaged[] = {
    {0, 'm', -EBADMSG, -1},          {1, 0, -EBADMSG, -1},
    {2, 0, -EPROTONOSUPPORT, 0},     {2, 2, -EPROTONOSUPPORT, 2},
    {2, 255, -EPROTONOSUPPORT, 255}, {3, MF_MESSAGE_N_, -EBADMSG, -1},
    {3, 255, -EBADMSG, -1},          {4, 1, -EBADMSG, -1},
    {7, 128, -EBADMSG, -1},
};

MF_TEST(rejects_damaged_header, .rows = MF_ARRAY_LEN(damaged))
{
    uint8_t bytes[MF_WIRE_HEADER_SIZE];
    struct mf_wire_header h = {MF_MESSAGE_BYE, 99};
    int version = -1;
    memcpy(bytes, good, sizeof(good));
    bytes[damaged[_i].at] = (uint8_t)damaged[_i].byte;
    ck_assert_int_eq(mf_wire_decode(bytes, sizeof(bytes), &h, &version), damaged[_i].expect);
    ck_assert_int_eq(version, damaged[_i].version);
    ck_assert_int_eq(h.type, MF_MESSAGE_BYE);
    ck_assert_uint_eq(h.sequence, 99);
}

/* The heap copy has exactly _i bytes, so that the address sanitizer detects reads past the end. */
MF_TEST(rejects_other_lengths, .rows = 2 * MF_WIRE_HEADER_SIZE)
{
    size_t len = (size_t)_i;
    uint8_t *bytes = calloc(1, len > 0 ? len : 1);
    struct mf_wire_header h;
    int version;
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, good, MF_MIN(len, sizeof(good)));
    ck_assert_int_eq(mf_wire_decode(bytes, len, &h, &version), len == sizeof(good) ? 0 : -EBADMSG);
    free(bytes);
}

/* A header of another version is detected, even if it has another length. */
MF_TEST(version_of_other_header_lengths)
{
    static const uint8_t later[40] = {'M', 'F', 7};
    struct mf_wire_header h;
    int version = -1;
    ck_assert_int_eq(mf_wire_decode(later, sizeof(later), &h, &version), -EPROTONOSUPPORT);
    ck_assert_int_eq(version, 7);
    version = -1;
    ck_assert_int_eq(mf_wire_decode(later, 3, &h, &version), -EPROTONOSUPPORT);
    ck_assert_int_eq(version, 7);
}

/* Every accepted header equals the encoding of its decoded values. */
MF_TEST(accepted_headers_reencode_identically)
{
    unsigned seed = (unsigned)time(NULL);
    printf("seed %u\n", seed);
    for (int round = 0; round < 200000; round++) {
        uint8_t bytes[MF_WIRE_HEADER_SIZE], again[MF_WIRE_HEADER_SIZE];
        struct mf_wire_header h;
        int version;
        memcpy(bytes, good, sizeof(good));
        for (int flips = rand_r(&seed) % 4; flips >= 0; flips--)
            bytes[rand_r(&seed) % MF_WIRE_HEADER_SIZE] = (uint8_t)rand_r(&seed);
        if (mf_wire_decode(bytes, sizeof(bytes), &h, &version) == 0) {
            mf_wire_encode(&h, again);
            ck_assert_mem_eq(again, bytes, sizeof(bytes));
        }
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
