#include "worker/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "common/text.h"
#include "kernels/device.h"

/* Linux 5.14 and 6.1; headers of older ones lack them */
#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#    define MADV_COLLAPSE 25
#endif

#define MANY_BYTES (64u << 20)

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

void mf_kept_store_init(struct mf_kept_store *s, uint64_t max_bytes)
{
    *s = (struct mf_kept_store){.max_bytes = max_bytes};
}

static void remove_at(struct mf_kept_store *s, size_t i)
{
    (void)close(s->items[i].fd);
    s->bytes -= s->items[i].bytes;
    s->n--;
    if (i != s->n)
        s->items[i] = s->items[s->n];
}

void mf_kept_store_release(struct mf_kept_store *s)
{
    while (s->n > 0)
        remove_at(s, s->n - 1);
}

static struct mf_kept *look_up(struct mf_kept_store *s, const char *key)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->items[i].key, key) == 0)
            return &s->items[i];
    }
    return NULL;
}

static int check_sealed(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes)
        return -EINVAL;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS ? 0 : -EPERM;
}

static void evict_oldest(struct mf_kept_store *s)
{
    size_t oldest = 0;
    for (size_t i = 1; i < s->n; i++) {
        if (s->items[i].used < s->items[oldest].used)
            oldest = i;
    }
    char key[MF_KEPT_KEY_MAX];
    memcpy(key, s->items[oldest].key, sizeof(key));
    remove_at(s, oldest);
    if (s->evicted)
        s->evicted(s->context, key);
}

int mf_kept_store_add(struct mf_kept_store *s, const char *key, int fd, uint64_t bytes)
{
    int r = check_sealed(fd, bytes);
    if (r == 0 && (key[0] == '\0' || strlen(key) >= MF_KEPT_KEY_MAX))
        r = -EINVAL;
    if (r == 0 && bytes > s->max_bytes)
        r = -EFBIG;
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    mf_kept_store_drop(s, key);
    while (s->n == MF_KEPT_MAX || s->bytes + bytes > s->max_bytes)
        evict_oldest(s);
    struct mf_kept *item = &s->items[s->n++];
    *item = (struct mf_kept){.fd = fd, .bytes = bytes, .used = ++s->turn};
    (void)mf_copy(item->key, sizeof(item->key), key);
    s->bytes += bytes;
    return 0;
}

const struct mf_kept *mf_kept_store_find(struct mf_kept_store *s, const char *key)
{
    struct mf_kept *item = look_up(s, key);
    if (item)
        item->used = ++s->turn;
    return item;
}

void mf_kept_store_drop(struct mf_kept_store *s, const char *key)
{
    struct mf_kept *item = look_up(s, key);
    if (item)
        remove_at(s, (size_t)(item - s->items));
}

static int keeper_find(struct mf_keeper *keeper, const char *key, uint64_t *ret_bytes)
{
    struct mf_runner_keeper *k = (struct mf_runner_keeper *)keeper;
    const struct mf_kept *item = mf_kept_store_find(&k->store, key);
    if (!item)
        return -1;
    *ret_bytes = item->bytes;
    return item->fd;
}

static void send_drop(void *context, const char *key)
{
    struct mf_runner_keeper *k = context;
    _cleanup_(cJSON_Deletep) cJSON *message = mf_channel_message("drop");
    if (message && cJSON_AddStringToObject(message, "key", key))
        (void)mf_channel_send_wait(k->channel, message, -1);
}

static int keeper_keep(struct mf_keeper *keeper, const char *key, int fd, uint64_t bytes)
{
    struct mf_runner_keeper *k = (struct mf_runner_keeper *)keeper;
    int r = mf_kept_store_add(&k->store, key, fd, bytes);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *message = mf_channel_message("keep");
    if (!message || !cJSON_AddStringToObject(message, "key", key) ||
        !mf_json_add_i64(message, "bytes", (int64_t)bytes))
        return -ENOMEM;
    return mf_channel_send_wait(k->channel, message, fd);
}

static void keeper_drop(struct mf_keeper *keeper, const char *key)
{
    struct mf_runner_keeper *k = (struct mf_runner_keeper *)keeper;
    mf_kept_store_drop(&k->store, key);
    send_drop(k, key);
}

void mf_runner_keeper_init(struct mf_runner_keeper *k, struct mf_channel *channel, uint64_t max_bytes)
{
    *k = (struct mf_runner_keeper){
        .keeper = {.find = keeper_find, .keep = keeper_keep, .drop = keeper_drop},
        .channel = channel,
    };
    mf_kept_store_init(&k->store, max_bytes);
    k->store.evicted = send_drop;
    k->store.context = k;
}

void mf_runner_keeper_release(struct mf_runner_keeper *k)
{
    mf_kept_store_release(&k->store);
}

struct collapse {
    char *at;
    size_t bytes;
};

static void collapse_thread(void *context, int thread, int n_threads)
{
    const struct collapse *c = context;
    bool able = true;
    for (size_t i = (size_t)thread * MF_HUGE_PAGE; i < c->bytes && able;
         i += (size_t)n_threads * MF_HUGE_PAGE) {
        /* by madvise, as a fault without memory would be a signal */
        able = madvise(c->at + i, 4096, MADV_POPULATE_WRITE) == 0 &&
               madvise(c->at + i, MF_HUGE_PAGE, MADV_COLLAPSE) == 0;
    }
}

/* Has the file in huge pages where Linux (6.1 on) can: there a page touched is enough to collapse 2 MiB into one,
 * whatever shmem_enabled says, and the file can still be sealed. Elsewhere it keeps its small pages. Large files by all
 * threads: in a virtual machine memory that was not used before comes from the host, at less than 1 GB/s for a thread. */
static void prefer_huge(int fd, uint64_t bytes)
{
    size_t whole = (size_t)(bytes / MF_HUGE_PAGE * MF_HUGE_PAGE);
    if (whole == 0)
        return;
    struct collapse c = {.at = mf_memory_map(fd, whole, PROT_READ | PROT_WRITE, 0), .bytes = whole};
    if (!c.at)
        return;
    if (whole >= MANY_BYTES)
        mf_pool_run(collapse_thread, &c, mf_pool_threads());
    else
        collapse_thread(&c, 0, 1);
    (void)munmap(c.at, whole);
}

void *mf_memory_map(int fd, size_t bytes, int protection, int flags)
{
    size_t reach = bytes < MF_HUGE_PAGE ? bytes : bytes + MF_HUGE_PAGE;
    char *reserved = mmap(NULL, reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return NULL;
    size_t before = reach == bytes ? 0 : (MF_HUGE_PAGE - (uintptr_t)reserved % MF_HUGE_PAGE) % MF_HUGE_PAGE;
    char *at = mmap(reserved + before, bytes, protection, MAP_SHARED | MAP_FIXED | flags, fd, 0);
    if (at == MAP_FAILED) {
        int error = errno;
        (void)munmap(reserved, reach);
        errno = error;
        return NULL;
    }
    if (before > 0)
        (void)munmap(reserved, before);
    if (reach > before + bytes)
        (void)munmap(at + bytes, reach - before - bytes);
    return at;
}

int mf_memory_file(const char *name, uint64_t bytes, int *ret_fd)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) < 0) {
        int r = -errno;
        (void)close(fd);
        return r;
    }
    prefer_huge(fd, bytes);
    *ret_fd = fd;
    return 0;
}

int mf_memory_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0 ? -errno : 0;
}
