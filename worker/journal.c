#include "worker/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/array.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"
#include "worker/record.h"

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

/* Takes the record when the unit becomes part of what was found. */
static int take_unit(struct mf_journal *j, cJSON **record)
{
    struct mf_journal_unit u = {.body = mf_json_object(*record, "unit")};
    if (mf_json_i64(u.body, "unit", 0, ID_MAX, &u.unit) < 0 ||
        mf_json_i64(u.body, "attempt", 0, ID_MAX, &u.attempt) < 0 ||
        mf_json_text(*record, "class", &u.class) < 0 || mf_json_text(*record, "revision", &u.revision) < 0)
        return 0;
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
    *u = j->found[--j->n_found];
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
    if (len > MF_RECORD_MAX || mf_record_write(j->fd, MAGIC, text, len, j->bytes) < 0) {
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

void mf_journal_take(struct mf_journal *j, cJSON *unit, const char *class, const char *revision)
{
    if (j->fd < 0)
        return;
    _cleanup_(cJSON_Deletep) cJSON *record = cJSON_CreateObject();
    bool ok = record && cJSON_AddItemReferenceToObject(record, "unit", unit) &&
              cJSON_AddStringToObject(record, "class", class) &&
              cJSON_AddStringToObject(record, "revision", revision);
    _cleanup_(mf_freep) char *text = ok ? mf_json_print(record) : NULL;
    if (text)
        add(j, text, strlen(text));
    else
        end(j);
    j->n_in_hand++;
}

void mf_journal_done(struct mf_journal *j, int64_t unit, int64_t attempt, struct mf_journal_item item)
{
    add_format(j, "{\"done\":[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]}", unit, attempt, item.seq,
               item.id);
}

void mf_journal_retake(struct mf_journal *j)
{
    j->n_in_hand++;
}

void mf_journal_begun(struct mf_journal *j, int64_t unit, int64_t attempt)
{
    add_format(j, "{\"begun\":[%" PRId64 ",%" PRId64 "]}", unit, attempt);
}

static void start_anew(struct mf_journal *j)
{
    if (j->fd >= 0 && ftruncate(j->fd, 0) < 0)
        end(j);
    j->bytes = 0;
    add_format(j, "{\"instance\":\"%s\"}", j->instance);
}

void mf_journal_gone(struct mf_journal *j, int64_t unit, int64_t attempt)
{
    if (j->n_in_hand > 0)
        j->n_in_hand--;
    if (j->n_in_hand == 0)
        start_anew(j);
    else
        add_format(j, "{\"gone\":[%" PRId64 ",%" PRId64 "]}", unit, attempt);
}

/* ---- life ---- */

int mf_journal_open(const char *folder, const char *name, const char *instance, struct mf_journal *ret)
{
    _cleanup_(mf_freep) char *path = NULL;
    *ret = (struct mf_journal){.fd = -1};
    if (asprintf(&path, "%s/%s.units", folder, name) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    int r = mf_copy(ret->instance, sizeof(ret->instance), instance);
    if (r < 0)
        return r;
    ret->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    r = ret->fd < 0 ? -errno : load(ret);
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

void mf_journal_forget(struct mf_journal *j)
{
    drop_found(j);
    if (j->n_in_hand == 0)
        start_anew(j);
}

void mf_journal_release(struct mf_journal *j)
{
    drop_found(j);
    mf_closep(&j->fd);
}
