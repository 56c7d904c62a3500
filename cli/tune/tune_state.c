/* Manages the state folder: the lock on the table and the records of submitted batches. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/support/file.h"
#include "cli/tune/tune.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define PENDING     "pending-"
#define PENDING_MAX (40u << 20) /* maximum record: 16 MiB of submission, enlarged by JSON escaping */
#define BATCHES_MAX 4096

/* ---- the folder ---- */

/* Creates the folder and its missing parents, readable only by this user. */
static int make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int r = mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
        *slash = '/';
        if (r < 0)
            return r;
    }
    return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/* Resolves the table's path. The table need not exist yet, but its folder must exist. */
static void table_path(const char *tune_file, char path[PATH_MAX])
{
    char folder[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(tune_file, '/');

    if (realpath(tune_file, path))
        return;
    mf_format(folder, sizeof(folder), "%.*s", slash ? (int)(slash - tune_file) + 1 : 1,
              slash ? tune_file : ".");
    if (realpath(folder, real))
        mf_format(path, PATH_MAX, "%s/%s", real, slash ? slash + 1 : tune_file);
    else
        mf_format(path, PATH_MAX, "%s", tune_file);
}

/* Creates a folder under XDG_STATE_HOME (XDG Base Directory Specification), for tables in read-only folders.
 */
static int make_xdg_folder(const char *table, char *folder, size_t cap)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    uint64_t hash = mf_hash64(table, strlen(table), MF_HASH_SEED);

    if (state && *state == '/')
        mf_format(folder, cap, "%s/moefarm/tune-%016" PRIx64, state, hash);
    else if (home && *home)
        mf_format(folder, cap, "%s/.local/state/moefarm/tune-%016" PRIx64, home, hash);
    else
        return -EACCES;
    return make_folders(folder);
}

static int make_folder(const char *requested, const char *tune_file, char *folder, size_t cap)
{
    char table[PATH_MAX];
    int r;

    if (requested) {
        r = mf_copy(folder, cap, requested);
        return r < 0 ? r : make_folders(folder);
    }
    table_path(tune_file, table);
    if (strlen(table) + sizeof(".moefarm") > cap)
        return -ENAMETOOLONG;
    mf_format(folder, cap, "%s.moefarm", table);
    if (mkdir(folder, 0700) == 0 || errno == EEXIST)
        return 0;
    r = -errno;
    return r == -EACCES || r == -EROFS || r == -EPERM ? make_xdg_folder(table, folder, cap) : r;
}

static int lock_table(struct mf_tune_state *s, const char *tune_file)
{
    char path[MF_TUNE_PATH_MAX + 16], pid[32] = "";

    mf_format(path, sizeof(path), "%s/tune.lock", s->folder);
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB) < 0) {
        ssize_t n = pread(s->lock, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return mf_cli_fail(MF_EXIT_FAILED,
                           "%s: locked by another moefarm tune%s%s; wait until it exits, or give another -o",
                           tune_file, *pid ? ", process " : "", pid);
    }
    mf_format(pid, sizeof(pid), "%ld\n", (long)getpid());
    if (ftruncate(s->lock, 0) < 0 || pwrite(s->lock, pid, strlen(pid), 0) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(errno));
    return 0;
}

int mf_tune_state_open(const char *requested, const char *tune_file, struct mf_tune_state *ret)
{
    int r = make_folder(requested, tune_file, ret->folder, sizeof(ret->folder));

    ret->lock = -1;
    if (r == -ENOENT && !requested)
        return mf_cli_fail(MF_EXIT_USAGE, "-o: %s: its folder does not exist", tune_file);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "cannot create the state folder %s%s: %s; give one with --state",
                           requested ? "" : "of the table ", requested ? requested : tune_file,
                           strerrordesc_np(-r));
    return lock_table(ret, tune_file);
}

void mf_tune_state_close(struct mf_tune_state *s)
{
    mf_closep(&s->lock);
}

/* ---- pending batches ---- */

void mf_tune_pending_release(struct mf_tune_pending *p)
{
    free(p->farm);
    free(p->options);
    free(p->key);
    free(p->body);
    *p = (struct mf_tune_pending){.path = ""};
}

static int save(const struct mf_tune_pending *p)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    _cleanup_(mf_freep) char *text = NULL;

    cJSON_AddStringToObject(json, "farm", p->farm);
    cJSON_AddStringToObject(json, "options", p->options);
    cJSON_AddStringToObject(json, "key", p->key);
    cJSON_AddStringToObject(json, "body", p->body);
    text = cJSON_PrintUnformatted(json);
    return text ? mf_file_write(p->path, text, strlen(text)) : mf_cli_out_of_memory();
}

int mf_tune_pending_add(const struct mf_tune_state *s, const char *farm, const char *options,
                        const char *body, struct mf_tune_pending *ret)
{
    struct mf_tune_pending p = {.path = ""};
    uint64_t hash = mf_hash64(options, strlen(options), mf_hash64(farm, strlen(farm), MF_HASH_SEED));
    struct timespec now;

    /* The time makes the key unique, so that rows submitted again after a failure form a new batch. */
    (void)clock_gettime(CLOCK_REALTIME, &now);
    hash = mf_hash64(body, strlen(body), hash);
    p.farm = strdup(farm);
    p.options = strdup(options);
    p.body = strdup(body);
    if (asprintf(&p.key, "tune-%016" PRIx64 "-%lld.%09ld", hash, (long long)now.tv_sec, now.tv_nsec) < 0)
        p.key = NULL;
    if (!p.farm || !p.options || !p.body || !p.key) {
        mf_tune_pending_release(&p);
        return mf_cli_out_of_memory();
    }
    mf_format(p.path, sizeof(p.path), "%s/" PENDING "%lld.%09ld.json", s->folder, (long long)now.tv_sec,
              now.tv_nsec);
    int code = save(&p);
    if (code != 0)
        mf_tune_pending_release(&p);
    else
        *ret = p;
    return code;
}

static int load(const char *path, struct mf_tune_pending *ret)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    struct mf_tune_pending p = {.path = ""};
    const struct {
        const char *key;
        char **to;
    } members[] = {{"farm", &p.farm}, {"options", &p.options}, {"key", &p.key}, {"body", &p.body}};

    mf_buf_init(&text, PENDING_MAX);
    int code = mf_file_read(path, &text);
    if (code != 0)
        return code;
    json = mf_json_parse(text.data, text.len, PENDING_MAX);
    for (size_t i = 0; i < MF_ARRAY_LEN(members); i++) {
        const char *value = NULL;
        if (mf_json_text(json, members[i].key, &value) == 0)
            *members[i].to = strdup(value);
        if (!*members[i].to) {
            mf_tune_pending_release(&p);
            return mf_cli_fail(MF_EXIT_FAILED, "%s: not a record of a batch; remove the file", path);
        }
    }
    mf_format(p.path, sizeof(p.path), "%s", path);
    *ret = p;
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_pending(const struct dirent *e)
{
    size_t len = strlen(e->d_name);

    return strncmp(e->d_name, PENDING, strlen(PENDING)) == 0 && len > 5 &&
           strcmp(e->d_name + len - 5, ".json") == 0;
}

int mf_tune_pending_list(const struct mf_tune_state *s, const char *farm, struct mf_tune_pending **ret,
                         size_t *ret_n)
{
    struct dirent **names = NULL;
    struct mf_tune_pending *list;
    int n = scandir(s->folder, &names, is_pending, by_name), code = 0;
    size_t n_list = 0;

    if (n < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", s->folder, strerrordesc_np(errno));
    list = calloc((size_t)n + 1, sizeof(*list));
    for (int i = 0; i < n; i++) {
        char path[MF_TUNE_PATH_MAX + 300];
        mf_format(path, sizeof(path), "%s/%s", s->folder, names[i]->d_name);
        free(names[i]);
        if (!list || code != 0 || n_list == BATCHES_MAX)
            continue;
        code = load(path, &list[n_list]);
        if (code == 0 && strcmp(list[n_list].farm, farm) == 0)
            n_list++;
        else
            mf_tune_pending_release(&list[n_list]);
    }
    free(names);
    *ret = list;
    *ret_n = n_list;
    return list ? code : mf_cli_out_of_memory();
}

void mf_tune_pending_done(const struct mf_tune_pending *p)
{
    (void)unlink(p->path);
}
