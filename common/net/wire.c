#include "common/net/wire.h"

MF_NAMES_DEFINE(mf_message, MF_MESSAGE_, MF_MESSAGE_MAP)

enum { AT_MAGIC = 0, AT_VERSION = 2, AT_TYPE = 3, AT_RESERVED = 4, AT_SEQUENCE = 8 };

static const uint8_t magic[2] = {'M', 'F'};

void mf_wire_encode(const struct mf_wire_header *h, uint8_t out[MF_WIRE_HEADER_SIZE])
{
    memset(out, 0, MF_WIRE_HEADER_SIZE);
    memcpy(out + AT_MAGIC, magic, sizeof(magic));
    out[AT_VERSION] = MF_WIRE_VERSION;
    out[AT_TYPE] = (uint8_t)h->type;
    for (int i = 0; i < 8; i++)
        out[AT_SEQUENCE + i] = (uint8_t)(h->sequence >> (8 * i));
}

int mf_wire_decode(const void *data, size_t len, struct mf_wire_header *ret, int *ret_version)
{
    static const uint8_t zero[AT_SEQUENCE - AT_RESERVED];
    const uint8_t *bytes = data;

    /* The position of magic and version is the same in every version; all other fields and the length may
     * change. */
    if (len <= AT_VERSION || memcmp(bytes + AT_MAGIC, magic, sizeof(magic)) != 0)
        return -EBADMSG;
    if (bytes[AT_VERSION] != MF_WIRE_VERSION) {
        *ret_version = bytes[AT_VERSION];
        return -EPROTONOSUPPORT;
    }
    if (len != MF_WIRE_HEADER_SIZE || bytes[AT_TYPE] >= MF_MESSAGE_N_ ||
        memcmp(bytes + AT_RESERVED, zero, sizeof(zero)) != 0)
        return -EBADMSG;

    uint64_t sequence = 0;
    for (int i = 0; i < 8; i++)
        sequence |= (uint64_t)bytes[AT_SEQUENCE + i] << (8 * i);
    *ret = (struct mf_wire_header){.type = (enum mf_message)bytes[AT_TYPE], .sequence = sequence};
    *ret_version = MF_WIRE_VERSION;
    return 0;
}
