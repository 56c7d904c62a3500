#include "worker/agent/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/cleanup.h"
#include "common/base/fault.h"

static uint32_t crc_of(const void *data, size_t len)
{
    return (uint32_t)crc32_z(0, data, len);
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

/* Writes both parts with one system call. If that call is interrupted, writes the rest separately. */
static int write_both(int fd, const uint8_t header[MF_RECORD_HEADER], const char *payload, size_t len,
                      uint64_t at)
{
    const struct iovec parts[] = {{(void *)header, MF_RECORD_HEADER}, {(void *)payload, len}};
    ssize_t n = pwritev(fd, parts, 2, (off_t)at);
    if (n < 0 && errno != EINTR)
        return -errno;
    size_t done = n < 0 ? 0 : (size_t)n, header_done = MF_MIN(done, (size_t)MF_RECORD_HEADER);
    int r = write_at(fd, header + header_done, MF_RECORD_HEADER - header_done, at + header_done);
    done -= header_done;
    return r < 0 ? r : write_at(fd, payload + done, len - done, at + MF_RECORD_HEADER + done);
}

int mf_record_write(int fd, const char *magic, const void *payload, size_t len, uint64_t at)
{
    uint8_t header[MF_RECORD_HEADER];
    memcpy(header, magic, 4);
    put_u32(header + 4, (uint32_t)len);
    put_u32(header + 8, crc_of(payload, len));
    if (mf_fault_armed == MF_FAULT_RECORD_PARTIAL) { /* lets a test crash between the two writes */
        int r = write_at(fd, header, sizeof(header), at);
        if (r < 0)
            return r;
        mf_fault_at(MF_FAULT_RECORD_PARTIAL);
    }
    return write_both(fd, header, payload, len, at);
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
    if (crc_of(payload, len) != get_u32(header + 8))
        return 0;
    payload[len] = '\0';
    memcpy(ret_magic, header, 4);
    ret_magic[4] = '\0';
    *ret = MF_TAKE(payload);
    *ret_len = len;
    return 1;
}
