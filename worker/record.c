#include "worker/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/fault.h"

/* What four bits more make of a sum: the remainder of i by CRC-32's polynomial, 0xedb88320 mirrored. */
static const uint32_t crc32_of_nibble[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

static uint32_t crc32_of(const void *data, size_t len)
{
    uint32_t crc = 0xffffffffu;
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ crc32_of_nibble[crc & 15];
        crc = crc >> 4 ^ crc32_of_nibble[crc & 15];
    }
    return ~crc;
}

static void put_u32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int write_at(int fd, const void *data, size_t len, uint64_t at)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(fd, (const char *)data + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    return 0;
}

static int read_at(int fd, void *to, size_t len, uint64_t at)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, (char *)to + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        done += (size_t)n;
    }
    return 0;
}

int mf_record_write(int fd, const char *magic, const void *payload, size_t len, uint64_t at)
{
    uint8_t header[MF_RECORD_HEADER];
    memcpy(header, magic, 4);
    put_u32(header + 4, (uint32_t)len);
    put_u32(header + 8, crc32_of(payload, len));
    int r = write_at(fd, header, sizeof(header), at);
    mf_fault_at(MF_FAULT_RECORD_HALF);
    return r < 0 ? r : write_at(fd, payload, len, at + sizeof(header));
}

int mf_record_read(int fd, uint64_t at, uint64_t size, char ret_magic[5], char **ret, size_t *ret_len)
{
    uint8_t header[MF_RECORD_HEADER];
    if (size < at || size - at < sizeof(header))
        return 0;
    int r = read_at(fd, header, sizeof(header), at);
    if (r < 0)
        return r;
    uint32_t len = get_u32(header + 4);
    if (len > MF_RECORD_MAX || len > size - at - sizeof(header))
        return 0;
    _cleanup_(mf_freep) char *payload = malloc((size_t)len + 1);
    if (!payload)
        return -ENOMEM;
    r = read_at(fd, payload, len, at + sizeof(header));
    if (r < 0)
        return r;
    if (crc32_of(payload, len) != get_u32(header + 8))
        return 0;
    payload[len] = '\0';
    memcpy(ret_magic, header, 4);
    ret_magic[4] = '\0';
    *ret = MF_TAKE(payload);
    *ret_len = len;
    return 1;
}
