#include "worker/agent/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/durable_file.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "worker/agent/record.h"

#define MAGIC  "MFU1"
#define ID_MAX (INT64_C(1) << 53)

/* ---- reading ---- */

static void release_unit(struct mf_journal_unit *u)
{
    cJSON_Delete(u->record);
    free(u->done);
    *u = (struct mf_journal_unit){0};
}

static struct mf_journal_unit *find(struct mf_journal *j, int64_t unit, int64_t attempt)
{
    for (size_t i = 0; i < j->n_found; i++) {
        if (j->found[i].unit == unit && j->found[i].attempt == attempt)
            return &j->found[i];
    }
    return NULL;
}

/* The numbers of an array of n; false: it is none. */
static bool numbers(const cJSON *json, const char *key, int n, int64_t *ret)
{
    const cJSON *array = mf_json_array(json, key);
    if (cJSON_GetArraySize(array) != n)
        return false;
    for (int i = 0; i < n; i++) {
        const cJSON *item = cJSON_GetArrayItem(array, i);
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > (double)ID_MAX)
            return false;
        ret[i] = (int64_t)item->valuedouble;
    }
    return true;
}

static bool unit_key(const cJSON *body, int64_t ret[2])
{
    return mf_json_i64(body, "unit", 0, ID_MAX, &ret[0]) == 0 &&
           mf_json_i64(body, "attempt", 0, ID_MAX, &ret[1]) == 0;
}

/* Takes the record when the unit becomes part of what was found. */
static int take_unit(struct mf_journal *j, cJSON **record)
{
    struct mf_journal_unit u = {.body = mf_json_object(*record, "unit"), .from = j->bytes};
    int64_t key[2];
    if (!unit_key(u.body, key) || mf_json_text(*record, "class", &u.class) < 0 ||
        mf_json_text(*record, "revision", &u.revision) < 0)
        return 0;
    u.unit = key[0];
    u.attempt = key[1];
    int r = mf_array_grow(&j->found, j->n_found, &j->cap_found, sizeof(*j->found));
    if (r < 0)
        return r;
    u.record = MF_TAKE(*record);
    j->found[j->n_found++] = u;
    return 0;
}

static int take_done(struct mf_journal *j, const int64_t key[4])
{
    struct mf_journal_unit *u = find(j, key[0], key[1]);
    if (!u)
        return 0;
    int r = mf_array_grow(&u->done, u->n_done, &u->cap_done, sizeof(*u->done));
    if (r < 0)
        return r;
    u->done[u->n_done++] = (struct mf_journal_item){.id = key[3], .seq = key[2]};
    u->begun_by = j->n_instances;
    u->n_fell = 1;
    return 0;
}

static void take_begun(struct mf_journal *j, const int64_t key[2])
{
    struct mf_journal_unit *u = find(j, key[0], key[1]);
    if (!u || u->begun_by == j->n_instances)
        return;
    u->begun_by = j->n_instances;
    u->n_fell++;
}

static void take_gone(struct mf_journal *j, const int64_t key[2])
{
    struct mf_journal_unit *u = find(j, key[0], key[1]);
    if (!u)
        return;
    release_unit(u);
    size_t i = (size_t)(u - j->found);
    j->n_found--;
    memmove(u, u + 1, (j->n_found - i) * sizeof(*u)); /* the order is that in which they were taken */
}

static int take_record(struct mf_journal *j, const char *text, size_t len)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, len, MF_RECORD_MAX);
    const char *instance;
    int64_t key[4];
    if (!json && errno == ENOMEM)
        return -ENOMEM;
    if (mf_json_text(json, "instance", &instance) == 0) {
        j->n_instances++;
        return mf_copy(j->predecessor, sizeof(j->predecessor), instance);
    }
    if (mf_json_object(json, "unit"))
        return take_unit(j, &json);
    if (numbers(json, "done", 4, key))
        return take_done(j, key);
    if (numbers(json, "gone", 2, key))
        take_gone(j, key);
    if (numbers(json, "begun", 2, key))
        take_begun(j, key);
    return 0;
}

static int load(struct mf_journal *j)
{
    struct stat st;
    if (fstat(j->fd, &st) < 0)
        return -errno;
    for (;;) {
        char magic[5];
        size_t len;
        _cleanup_(mf_freep) char *text = NULL;
        int r = mf_record_read(j->fd, j->bytes, (uint64_t)st.st_size, magic, &text, &len);
        if (r <= 0 || strcmp(magic, MAGIC) != 0)
            return r < 0 ? r : 0;
        r = take_record(j, text, len);
        if (r < 0)
            return r;
        j->bytes += MF_RECORD_HEADER + len;
    }
}

/* ---- writing ---- */

static void end(struct mf_journal *j)
{
    if (j->fd < 0)
        return;
    (void)ftruncate(j->fd, 0);
    mf_closep(&j->fd);
}

static void add(struct mf_journal *j, const char *text, size_t len)
{
    if (j->fd < 0)
        return;
    /* One that was found larger is first rewritten, when it is known what of it is wanted */
    bool has_room = j->n_found > 0 || j->bytes + MF_RECORD_HEADER + len <= MF_JOURNAL_BYTES_MAX;
    if (len > MF_RECORD_MAX || !has_room || mf_record_write(j->fd, MAGIC, text, len, j->bytes) < 0) {
        end(j);
        return;
    }
    j->bytes += MF_RECORD_HEADER + len;
}

static void add_format(struct mf_journal *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_format(struct mf_journal *j, const char *format, ...)
{
    struct mf_buf b;
    va_list args;
    mf_buf_init(&b, 1024);
    va_start(args, format);
    int r = mf_buf_addv(&b, format, args);
    va_end(args);
    if (r == 0)
        add(j, b.data, b.len);
    else
        end(j);
    mf_buf_release(&b);
}

static struct mf_journal_held *find_held(const struct mf_journal *j, const int64_t key[2])
{
    for (size_t i = 0; i < j->n_held; i++) {
        if (j->held[i].unit == key[0] && j->held[i].attempt == key[1])
            return &j->held[i];
    }
    return NULL;
}

static void hold(struct mf_journal *j, struct mf_journal_held held)
{
    if (mf_array_grow(&j->held, j->n_held, &j->cap_held, sizeof(*j->held)) < 0)
        end(j); /* nobody could say what of it is wanted */
    else
        j->held[j->n_held++] = held;
}

static void let_go(struct mf_journal *j, const int64_t key[2])
{
    struct mf_journal_held *held = find_held(j, key);
    if (held)
        *held = j->held[--j->n_held];
}

void mf_journal_take(struct mf_journal *j, cJSON *unit, const char *class, const char *revision)
{
    int64_t key[2];
    if (j->fd < 0 || !unit_key(unit, key))
        return;
    _cleanup_(cJSON_Deletep) cJSON *record = cJSON_CreateObject();
    bool ok = record && cJSON_AddItemReferenceToObject(record, "unit", unit) &&
              cJSON_AddStringToObject(record, "class", class) &&
              cJSON_AddStringToObject(record, "revision", revision);
    _cleanup_(mf_freep) char *text = ok ? mf_json_print(record) : NULL;
    hold(j, (struct mf_journal_held){.unit = key[0], .attempt = key[1], .from = j->bytes});
    if (text)
        add(j, text, strlen(text));
    else
        end(j);
}

void mf_journal_done(struct mf_journal *j, int64_t unit, int64_t attempt, struct mf_journal_item item)
{
    add_format(j, "{\"done\":[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]}", unit, attempt, item.seq,
               item.id);
}

void mf_journal_retake(struct mf_journal *j, const struct mf_journal_unit *found)
{
    hold(j, (struct mf_journal_held){.unit = found->unit, .attempt = found->attempt, .from = found->from});
}

void mf_journal_begun(struct mf_journal *j, int64_t unit, int64_t attempt)
{
    add_format(j, "{\"begun\":[%" PRId64 ",%" PRId64 "]}", unit, attempt);
}

/* ---- leaving out what is not wanted any more ---- */

static void start_anew(struct mf_journal *j)
{
    if (j->fd >= 0 && ftruncate(j->fd, 0) < 0)
        end(j);
    j->bytes = 0;
    j->rewrite_at = MF_JOURNAL_REWRITE_MIN;
    add_format(j, "{\"instance\":\"%s\"}", j->instance);
}

/* The file that takes the place of the old one. */
struct successor {
    int fd;
    uint64_t bytes;
    char *instance; /* record of the last one that was read, not written until something follows it */
    size_t len;
};

static int put(struct successor *s, const char *text, size_t len)
{
    int r = mf_record_write(s->fd, MAGIC, text, len, s->bytes);
    if (r == 0)
        s->bytes += MF_RECORD_HEADER + len;
    return r;
}

static int put_instance(struct successor *s)
{
    _cleanup_(mf_freep) char *text = MF_TAKE(s->instance);
    return text ? put(s, text, s->len) : 0;
}

/* Is the record at `at` of a unit in hand, and of this time that it is? */
static bool is_wanted(const struct mf_journal *j, const cJSON *record, uint64_t at)
{
    int64_t key[4];
    const cJSON *unit = mf_json_object(record, "unit");
    if (unit ? !unit_key(unit, key) : !numbers(record, "done", 4, key) && !numbers(record, "begun", 2, key))
        return false;
    const struct mf_journal_held *held = find_held(j, key);
    return held && at >= held->from;
}

/* An instance that said nothing of a unit in hand is told from its neighbours by nobody: of those the last one is written only,
 * whose file it is. */
static int pass_on(const struct mf_journal *j, struct successor *s, uint64_t at, char **text, size_t len)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(*text, len, MF_RECORD_MAX);
    const char *instance;
    if (!json && errno == ENOMEM)
        return -ENOMEM;
    if (mf_json_text(json, "instance", &instance) == 0) {
        free(s->instance);
        s->instance = MF_TAKE(*text);
        s->len = len;
        return 0;
    }
    if (!is_wanted(j, json, at))
        return 0;
    int r = put_instance(s);
    return r < 0 ? r : put(s, *text, len);
}

static int write_wanted(const struct mf_journal *j, struct successor *s)
{
    for (uint64_t at = 0; at < j->bytes;) {
        char magic[5];
        size_t len;
        _cleanup_(mf_freep) char *text = NULL;
        int r = mf_record_read(j->fd, at, j->bytes, magic, &text, &len);
        if (r <= 0)
            return r < 0 ? r : -EBADMSG; /* the disk has not what was written */
        r = pass_on(j, s, at, &text, len);
        if (r < 0)
            return r;
        at += MF_RECORD_HEADER + len;
    }
    return put_instance(s);
}

/* A folder that cannot be synced leaves the new file under the name, with -errno. */
static bool has_name(int fd, const char *path)
{
    struct stat file, named;
    return fstat(fd, &file) == 0 && stat(path, &named) == 0 && file.st_dev == named.st_dev &&
           file.st_ino == named.st_ino;
}

static void go_on_in(struct mf_journal *j, struct successor *s)
{
    mf_closep(&j->fd);
    j->fd = s->fd;
    j->bytes = s->bytes;
    for (size_t i = 0; i < j->n_held; i++)
        j->held[i].from = 0; /* nothing is left of earlier times */
}

static int rewrite(struct mf_journal *j)
{
    _cleanup_(mf_freep) char *path = NULL;
    if (asprintf(&path, "%s.new", j->path) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    struct successor s = {.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    if (s.fd < 0)
        return -errno;
    int r = write_wanted(j, &s);
    free(s.instance);
    mf_fault_at(MF_FAULT_JOURNAL_WRITTEN);
    if (r < 0)
        (void)unlink(path);
    else
        r = mf_put_in_place(path, j->path);
    mf_fault_at(MF_FAULT_JOURNAL_RENAMED);
    if (r == 0 || has_name(s.fd, j->path))
        go_on_in(j, &s);
    else
        mf_closep(&s.fd);
    return r;
}

/* Only when something went out of hand, and when it has grown as much as is read again: a unit in hand that is large by itself
 * does not have it rewritten with each record, nor does a disk that is full. */
static int shorten(struct mf_journal *j)
{
    if (j->n_held == 0) {
        start_anew(j);
        return 0;
    }
    if (j->fd < 0 || j->n_found > 0 || j->bytes < j->rewrite_at)
        return 0;
    int r = rewrite(j);
    j->rewrite_at = MF_MAX(2 * j->bytes, (uint64_t)MF_JOURNAL_REWRITE_MIN);
    return r;
}

int mf_journal_gone(struct mf_journal *j, int64_t unit, int64_t attempt)
{
    let_go(j, (const int64_t[]){unit, attempt});
    if (j->n_held > 0)
        add_format(j, "{\"gone\":[%" PRId64 ",%" PRId64 "]}", unit, attempt);
    return shorten(j);
}

/* ---- life ---- */

int mf_journal_open(const char *folder, const char *name, const char *instance, struct mf_journal *ret)
{
    *ret = (struct mf_journal){.fd = -1, .rewrite_at = MF_JOURNAL_REWRITE_MIN};
    if (asprintf(&ret->path, "%s/%s.units", folder, name) < 0) {
        ret->path = NULL;
        return -ENOMEM;
    }
    int r = mf_copy(ret->instance, sizeof(ret->instance), instance);
    if (r == 0) {
        ret->fd = open(ret->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        r = ret->fd < 0 ? -errno : load(ret);
    }
    if (r == 0 && ftruncate(ret->fd, (off_t)ret->bytes) < 0)
        r = -errno;
    if (r < 0) {
        mf_journal_release(ret);
        return r;
    }
    if (ret->n_found > 0)
        add_format(ret, "{\"instance\":\"%s\"}", instance);
    else
        start_anew(ret);
    return 0;
}

static void drop_found(struct mf_journal *j)
{
    for (size_t i = 0; i < j->n_found; i++)
        release_unit(&j->found[i]);
    free(j->found);
    j->found = NULL;
    j->n_found = 0;
}

int mf_journal_forget(struct mf_journal *j)
{
    drop_found(j);
    return shorten(j);
}

void mf_journal_release(struct mf_journal *j)
{
    drop_found(j);
    mf_closep(&j->fd);
    free(MF_TAKE(j->held));
    j->n_held = j->cap_held = 0;
    free(MF_TAKE(j->path));
}
