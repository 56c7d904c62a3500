#include "worker/agent/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/durable_file.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "worker/agent/lock.h"
#include "worker/agent/record.h"

#define RESULT_MAGIC "MFR1"
#define ACK_MAGIC    "MFA1"
#define ACK_PAYLOAD  24
#define SPACE_BYTES  (64 << 10) /* free space required at startup */
#define TRIES_MAX    1000 /* attempts to find a record after damage; each may read MF_RECORD_MAX bytes */

struct record {
    struct mf_spool_key key;
    char *body;
    size_t len;
    bool acknowledged;
};

/* records[first] to records[n - 1] are in file order; earlier records are acknowledged and freed */
struct mf_spool {
    int fd;
    char *path;
    struct record *records;
    size_t first, n, cap;
    size_t next; /* first record not marked as sent */
    size_t n_live;
    uint64_t live_bytes; /* size of all unacknowledged bodies */
    uint64_t file_bytes;
    int64_t dirty_since_ms; /* 0: everything is synced or acknowledged */
};

static int add_record(struct mf_spool *s, const struct mf_spool_key *key, const char *body, size_t len)
{
    if (s->n == s->cap && s->first > s->cap / 2) {
        memmove(s->records, s->records + s->first, (s->n - s->first) * sizeof(*s->records));
        s->n -= s->first;
        s->next -= s->first;
        s->first = 0;
    }
    int r = mf_array_grow(&s->records, s->n, &s->cap, sizeof(*s->records));
    if (r < 0)
        return r;
    char *copy = malloc(len + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, body, len);
    copy[len] = '\0';
    s->records[s->n++] = (struct record){.key = *key, .body = copy, .len = len};
    s->n_live++;
    s->live_bytes += len;
    return 0;
}

static int key_of(const char *body, size_t len, struct mf_spool_key *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, len, MF_SPOOL_RECORD_MAX);
    const int64_t max = INT64_C(1) << 53;
    if (!json)
        return -errno;
    if (mf_json_i64(json, "unit", 0, max, &ret->unit) < 0 ||
        mf_json_i64(json, "attempt", 0, max, &ret->attempt) < 0 ||
        mf_json_i64(json, "seq", 0, max, &ret->seq) < 0)
        return -EBADMSG;
    return 0;
}

static int ack_key_of(const char *payload, size_t len, struct mf_spool_key *ret)
{
    uint64_t parts[3] = {0};
    if (len != ACK_PAYLOAD)
        return -EBADMSG;
    for (int i = 0; i < ACK_PAYLOAD; i++)
        parts[i / 8] |= (uint64_t)(uint8_t)payload[i] << (8 * (i % 8));
    *ret = (struct mf_spool_key){(int64_t)parts[0], (int64_t)parts[1], (int64_t)parts[2]};
    return 0;
}

/* Removes a result. Returns false if the result is unknown or already acknowledged. */
static bool remove_record(struct mf_spool *s, const struct mf_spool_key *key)
{
    for (size_t i = s->first; i < s->n; i++) {
        struct record *record = &s->records[i];
        if (record->acknowledged || record->key.unit != key->unit || record->key.attempt != key->attempt ||
            record->key.seq != key->seq)
            continue;
        record->acknowledged = true;
        free(record->body);
        record->body = NULL;
        s->n_live--;
        s->live_bytes -= record->len;
        while (s->first < s->n && s->records[s->first].acknowledged)
            s->first++;
        s->next = MF_MAX(s->next, s->first);
        return true;
    }
    return false;
}

/* Loads the record at file_bytes and moves file_bytes behind it. Returns 1 if it is loaded, 0 if there is no
 * valid record. */
static int load_record(struct mf_spool *s, uint64_t size)
{
    char magic[5];
    size_t len;
    struct mf_spool_key key;
    _cleanup_(mf_freep) char *body = NULL;
    int r = mf_record_read(s->fd, s->file_bytes, size, magic, &body, &len);
    if (r <= 0)
        return r;
    bool is_ack = strcmp(magic, ACK_MAGIC) == 0;
    if (!is_ack && strcmp(magic, RESULT_MAGIC) != 0)
        return 0;
    r = is_ack ? ack_key_of(body, len, &key) : key_of(body, len, &key);
    if (r == -EBADMSG)
        return 0;
    if (r < 0) /* memory is exhausted; the rest of the file is intact and must not be cut off */
        return r;
    if (is_ack)
        remove_record(s, &key);
    else
        r = add_record(s, &key, body, len);
    if (r < 0)
        return r;
    s->file_bytes += MF_RECORD_HEADER + len;
    return 1;
}

/* Returns the offset of the next text that may begin a record, or size if there is none. */
static int find_magic(const struct mf_spool *s, uint64_t from, uint64_t size, uint64_t *ret)
{
    char buf[8192];
    const size_t magic = strlen(RESULT_MAGIC);
    for (uint64_t at = from; size - at >= magic;) {
        ssize_t n = pread(s->fd, buf, sizeof(buf), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        for (size_t i = 0; i + magic <= (size_t)n; i++) {
            if (memcmp(buf + i, RESULT_MAGIC, magic) == 0 || memcmp(buf + i, ACK_MAGIC, magic) == 0) {
                *ret = at + i;
                return 0;
            }
        }
        if ((size_t)n < magic)
            break;
        at += (uint64_t)n - magic + 1;
    }
    *ret = size;
    return 0;
}

/* Skips damage at file_bytes. Returns 1 if another valid record follows and is loaded; file_bytes is then
 * behind that record. Otherwise returns 0, and file_bytes is unchanged. A record's JSON cannot contain text
 * that passes for a record, because the length of a record has a zero byte. */
static int skip_damage(struct mf_spool *s, uint64_t size, int *tries_left)
{
    uint64_t damage = s->file_bytes, at = damage;
    int r = 0;
    while (r == 0 && (*tries_left)-- > 0) {
        r = find_magic(s, at + 1, size, &at);
        if (r < 0 || at == size)
            break;
        s->file_bytes = at;
        r = load_record(s, size);
    }
    if (r <= 0)
        s->file_bytes = damage;
    return r;
}

/* Writes the unacknowledged results to a new file and renames it over the old file. The new file is locked
 * before the rename, so no other process can take the lock in between. */
static int rewrite(struct mf_spool *s)
{
    _cleanup_(mf_freep) char *path = NULL;
    if (asprintf(&path, "%s.new", s->path) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    (void)unlink(path); /* left by a process that was killed */
    _cleanup_(mf_closep) int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    uint64_t at = 0;
    int r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
    for (size_t i = s->first; r == 0 && i < s->n; i++) {
        if (s->records[i].acknowledged)
            continue;
        r = mf_record_write(fd, RESULT_MAGIC, s->records[i].body, s->records[i].len, at);
        at += MF_RECORD_HEADER + s->records[i].len;
    }
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    mf_fault_at(MF_FAULT_SPOOL_WRITTEN);
    if (r == 0 && rename(path, s->path) < 0)
        r = -errno;
    mf_fault_at(MF_FAULT_SPOOL_RENAMED);
    if (r < 0) {
        (void)unlink(path);
        return r;
    }
    (void)close(s->fd);
    s->fd = fd;
    fd = -1;
    s->file_bytes = at;
    s->dirty_since_ms = 0;
    return mf_sync_folder(s->path);
}

/* Loads all valid records. Then cuts off damage at the end. If there is other damage, rewrites the file. */
static int load(struct mf_spool *s, uint64_t *ret_damaged)
{
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    uint64_t size = (uint64_t)st.st_size, valid = 0, before;
    int r, tries_left = TRIES_MAX;
    do {
        before = s->file_bytes;
        while ((r = load_record(s, size)) == 1)
            ;
        valid += s->file_bytes - before;
        before = s->file_bytes;
        if (r == 0)
            r = skip_damage(s, size, &tries_left);
    } while (r == 1);
    if (r < 0)
        return r;
    if (ret_damaged)
        *ret_damaged = size - valid;
    if (size != s->file_bytes && ftruncate(s->fd, (off_t)s->file_bytes) < 0)
        return -errno;
    return valid == s->file_bytes ? 0 : rewrite(s);
}

/* Fails if the disk has no room for results. A worker that cannot store a result must not lease a unit: every
 * crash would use up one attempt of the unit. */
static int check_space(const struct mf_spool *s)
{
    static const char zeros[4096];
    int r = 0;
    for (int i = 0; r == 0 && i < SPACE_BYTES; i += (int)sizeof(zeros)) {
        if (pwrite(s->fd, zeros, sizeof(zeros), (off_t)(s->file_bytes + (uint64_t)i)) !=
            (ssize_t)sizeof(zeros))
            r = errno ? -errno : -ENOSPC;
    }
    /* Zeros are not a valid record, so the next start removes them if the worker dies here. */
    if (ftruncate(s->fd, (off_t)s->file_bytes) < 0 && r == 0)
        r = -errno;
    return r;
}

int mf_spool_open(const char *folder, const char *name, struct mf_spool **ret, uint64_t *ret_damaged)
{
    struct mf_spool *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->fd = -1;
    int r = -ENOMEM;
    if (asprintf(&s->path, "%s/%s.spool", folder, name) < 0) {
        s->path = NULL;
        goto fail;
    }
    s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->fd < 0) {
        r = -errno;
        goto fail;
    }
    r = mf_lock_file(s->fd);
    if (r == 0)
        r = load(s, ret_damaged);
    if (r == 0)
        r = check_space(s);
    if (r < 0)
        goto fail;
    *ret = s;
    return 0;
fail:
    mf_spool_close(s);
    return r;
}

struct mf_spool *mf_spool_close(struct mf_spool *s)
{
    if (!s)
        return NULL;
    for (size_t i = s->first; i < s->n; i++)
        free(s->records[i].body);
    free(s->records);
    if (s->fd >= 0)
        (void)close(s->fd);
    free(s->path);
    free(s);
    return NULL;
}

int mf_spool_append(struct mf_spool *s, const struct mf_spool_key *key, const char *body, size_t len)
{
    if (len > MF_SPOOL_RECORD_MAX || s->live_bytes + len > MF_SPOOL_BYTES_MAX)
        return -EFBIG;
    int r = mf_record_write(s->fd, RESULT_MAGIC, body, len, s->file_bytes);
    if (r == 0)
        r = add_record(s, key, body, len);
    if (r < 0) {
        (void)ftruncate(s->fd, (off_t)s->file_bytes);
        return r;
    }
    s->file_bytes += MF_RECORD_HEADER + len;
    if (s->dirty_since_ms == 0)
        s->dirty_since_ms = mf_now_ms();
    return 0;
}

static int compact(struct mf_spool *s)
{
    if (s->n_live == 0) {
        if (s->file_bytes > 0 && ftruncate(s->fd, 0) < 0)
            return -errno;
        s->first = s->n = s->next = 0;
        s->file_bytes = 0;
        s->dirty_since_ms = 0;
        return 0;
    }
    if (s->file_bytes > MF_SPOOL_REWRITE_MIN && s->live_bytes < s->file_bytes / 4)
        return rewrite(s);
    return 0;
}

int mf_spool_acknowledge(struct mf_spool *s, const struct mf_spool_key *key)
{
    if (!remove_record(s, key))
        return 0;
    if (s->n_live > 0) {
        char payload[ACK_PAYLOAD];
        const int64_t parts[] = {key->unit, key->attempt, key->seq};
        for (int i = 0; i < ACK_PAYLOAD; i++)
            payload[i] = (char)(parts[i / 8] >> (8 * (i % 8)));
        int r = mf_record_write(s->fd, ACK_MAGIC, payload, ACK_PAYLOAD, s->file_bytes);
        if (r < 0) {
            (void)ftruncate(s->fd, (off_t)s->file_bytes);
            return r;
        }
        s->file_bytes += MF_RECORD_HEADER + ACK_PAYLOAD;
    }
    return compact(s);
}

int64_t mf_spool_sync_due_ms(const struct mf_spool *s)
{
    return s->dirty_since_ms ? s->dirty_since_ms + MF_SPOOL_SYNC_MS : INT64_MAX;
}

int mf_spool_sync(struct mf_spool *s)
{
    if (s->dirty_since_ms == 0)
        return 0;
    if (fdatasync(s->fd) < 0)
        return -errno;
    s->dirty_since_ms = 0;
    return 0;
}

static void skip_acknowledged(struct mf_spool *s)
{
    while (s->next < s->n && s->records[s->next].acknowledged)
        s->next++;
}

bool mf_spool_next(struct mf_spool *s, struct mf_spool_key *ret_key, const char **ret_body, size_t *ret_len)
{
    skip_acknowledged(s);
    if (s->next >= s->n)
        return false;
    *ret_key = s->records[s->next].key;
    *ret_body = s->records[s->next].body;
    *ret_len = s->records[s->next].len;
    return true;
}

void mf_spool_sent(struct mf_spool *s)
{
    skip_acknowledged(s);
    if (s->next < s->n)
        s->next++;
}

void mf_spool_resend(struct mf_spool *s)
{
    s->next = s->first;
}

bool mf_spool_has_unsent(struct mf_spool *s)
{
    skip_acknowledged(s);
    return s->next < s->n;
}

size_t mf_spool_n(const struct mf_spool *s)
{
    return s->n_live;
}
