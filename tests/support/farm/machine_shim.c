/* A library that tests preload into a program (machine.h). Simulates a disk that loses and reorders unsynced
 * writes at a power failure, a full or read-only disk, and a wall clock that jumps.
 *
 * Each watched file has two contents: those of the file, which the program sees, and `disk`, a copy in memory
 * with the contents at the last sync. Later writes are pending. When the power fails, each sector of each
 * pending write is either applied to `disk` or lost, at random. Then the file gets the contents of `disk` and
 * the process dies. Renames take effect on the disk at once. A file that programs map (SQLite's -shm) is
 * deleted. */
#define _GNU_SOURCE
#define MACHINE_SHIM
#include "support/farm/machine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS_MAX   4096
#define FILES_MAX 64
#define SECTOR    512

struct pending {
    int64_t at;
    size_t len;
    char *data; /* NULL if this is a truncation to `at` bytes */
};

struct file {
    dev_t dev;
    ino_t ino;
    char path[256];
    char *disk;
    size_t len;
    struct pending *pending;
    size_t n, cap;
};

static struct machine *orders;
static struct file files[FILES_MAX], *by_fd[FDS_MAX];
static size_t n_files;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name)                                                         \
    ({                                                                     \
        static __typeof__(&name) real_;                                    \
        if (!real_)                                                        \
            real_ = (__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name); \
        real_;                                                             \
    })

__attribute__((constructor)) static void map_settings(void)
{
    const char *path = getenv("MOEFARM_MACHINE");
    int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof(*orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)REAL(close)(fd);
    orders = at == MAP_FAILED ? NULL : at;
}

/* ---- disk ---- */

static void resize(struct file *f, size_t len)
{
    if (len > f->len) {
        f->disk = realloc(f->disk, len);
        memset(f->disk + f->len, 0, len - f->len);
    }
    f->len = len;
}

static void apply(struct file *f, int64_t at, const char *data, size_t len)
{
    if ((size_t)at + len > f->len)
        resize(f, (size_t)at + len);
    memcpy(f->disk + at, data, len);
}

static struct file *watch(int fd, const char *path)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    for (size_t i = 0; i < n_files; i++) {
        if (files[i].dev == st.st_dev && files[i].ino == st.st_ino)
            return &files[i];
    }
    if (n_files == FILES_MAX) {
        static const char text[] = "machine_shim: too many files to watch\n";
        (void)!REAL(write)(2, text, sizeof(text) - 1);
        abort();
    }
    struct file *f = &files[n_files++];
    *f = (struct file){.dev = st.st_dev, .ino = st.st_ino};
    (void)snprintf(f->path, sizeof(f->path), "%s", path);
    resize(f, (size_t)st.st_size);
    if (st.st_size > 0 && pread(fd, f->disk, f->len, 0) < 0)
        abort();
    return f;
}

static uint64_t next_random(void)
{
    uint64_t z = orders->seed += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void settle_by_chance(struct file *f, unsigned arrive)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct pending *p = &f->pending[i];
        if (!p->data && next_random() % 100 < arrive)
            resize(f, (size_t)p->at);
        for (size_t from = 0; p->data && from < p->len;) {
            size_t n = SECTOR - ((size_t)p->at + from) % SECTOR;
            n = n < p->len - from ? n : p->len - from;
            if (next_random() % 100 < arrive)
                apply(f, p->at + (int64_t)from, p->data + from, n);
            from += n;
        }
    }
}

/* Simulates the power failure; does not return. The caller holds the lock, so no other thread can write. */
static void fail_power(void)
{
    static const unsigned chances[] = {0, 30, 70, 100};
    unsigned arrive = chances[next_random() % 4];
    char shm[300];
    for (size_t i = 0; i < n_files; i++) {
        struct file *f = &files[i];
        if (!f->path[0])
            continue;
        settle_by_chance(f, arrive);
        int fd = REAL(open)(f->path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (REAL(ftruncate)(fd, 0) < 0)
            abort();
        for (size_t at = 0; at < f->len;) {
            ssize_t n = REAL(pwrite)(fd, f->disk + at, f->len - at, (off_t)at);
            if (n <= 0)
                abort();
            at += (size_t)n;
        }
        (void)snprintf(shm, sizeof(shm), "%s-shm", f->path);
        (void)REAL(unlink)(shm);
    }
    orders->has_cut = 1;
    (void)kill(getpid(), SIGKILL);
    for (;;)
        (void)pause();
}

static void count(void)
{
    if (__atomic_add_fetch(&orders->writes, 1, __ATOMIC_SEQ_CST) == orders->cut_at)
        fail_power();
}

static void add_pending(struct file *f, int64_t at, const void *data, size_t len)
{
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 64;
        f->pending = realloc(f->pending, f->cap * sizeof(*f->pending));
    }
    struct pending *p = &f->pending[f->n++];
    *p = (struct pending){.at = at, .len = len};
    if (data) {
        p->data = malloc(len + 1);
        memcpy(p->data, data, len);
    }
}

static void settle(struct file *f)
{
    for (size_t i = 0; i < f->n; i++) {
        if (f->pending[i].data)
            apply(f, f->pending[i].at, f->pending[i].data, f->pending[i].len);
        else
            resize(f, (size_t)f->pending[i].at);
        free(f->pending[i].data);
    }
    f->n = 0;
}

static struct file *watched(int fd)
{
    return orders && fd >= 0 && fd < FDS_MAX ? by_fd[fd] : NULL;
}

/* Returns the injected error, or 0 if writes succeed. */
static int refusal(void)
{
    return orders->read_only ? EROFS : (int)orders->write_errno;
}

static ssize_t write_at(int fd, const void *data, size_t len, int64_t at)
{
    struct file *f = watched(fd);
    if (!f)
        return REAL(pwrite)(fd, data, len, (off_t)at);
    int error = refusal();
    if (error) {
        errno = error;
        return -1;
    }
    (void)pthread_mutex_lock(&lock);
    ssize_t n = REAL(pwrite)(fd, data, len, (off_t)at);
    if (n > 0)
        add_pending(f, at, data, (size_t)n);
    count();
    (void)pthread_mutex_unlock(&lock);
    return n;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at)
{
    return write_at(fd, data, len, at);
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t at)
{
    return write_at(fd, data, len, at);
}

/* Writes each part separately, so that the power can fail between two parts. */
static ssize_t write_parts(int fd, const struct iovec *parts, int n, int64_t at)
{
    ssize_t sum = 0;
    for (int i = 0; i < n; i++) {
        ssize_t one = write_at(fd, parts[i].iov_base, parts[i].iov_len, at + sum);
        if (one < 0)
            return sum > 0 ? sum : -1;
        sum += one;
        if ((size_t)one < parts[i].iov_len)
            break;
    }
    return sum;
}

ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    return write_parts(fd, parts, n, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t at)
{
    return write_parts(fd, parts, n, at);
}

static int truncate_to(int fd, int64_t len)
{
    struct file *f = watched(fd);
    if (!f)
        return REAL(ftruncate)(fd, (off_t)len);
    if (orders->read_only) {
        errno = EROFS;
        return -1;
    }
    (void)pthread_mutex_lock(&lock);
    int r = REAL(ftruncate)(fd, (off_t)len);
    if (r == 0)
        add_pending(f, len, NULL, 0);
    count();
    (void)pthread_mutex_unlock(&lock);
    return r;
}

int ftruncate(int fd, off_t len)
{
    return truncate_to(fd, len);
}

int ftruncate64(int fd, off64_t len)
{
    return truncate_to(fd, len);
}

static int sync_file(int fd, bool data_only)
{
    struct file *f = watched(fd);
    if (!f)
        return data_only ? REAL(fdatasync)(fd) : REAL(fsync)(fd);
    (void)pthread_mutex_lock(&lock);
    count(); /* if the power fails here, nothing is synced */
    settle(f);
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd)
{
    return sync_file(fd, false);
}

int fdatasync(int fd)
{
    return sync_file(fd, true);
}

/* Stops watching a removed file, because a new file may reuse its inode. */
static void forget(const char *path)
{
    for (size_t i = 0; i < n_files; i++) {
        if (strcmp(files[i].path, path) == 0) {
            files[i].path[0] = '\0';
            files[i].ino = 0;
        }
    }
}

int unlink(const char *path)
{
    (void)pthread_mutex_lock(&lock);
    int r = REAL(unlink)(path);
    if (r == 0)
        forget(path);
    (void)pthread_mutex_unlock(&lock);
    return r;
}

int rename(const char *from, const char *to)
{
    (void)pthread_mutex_lock(&lock);
    int r = REAL(rename)(from, to);
    if (r == 0)
        forget(to);
    for (size_t i = 0; r == 0 && i < n_files; i++) {
        if (strcmp(files[i].path, from) == 0)
            (void)snprintf(files[i].path, sizeof(files[i].path), "%s", to);
    }
    (void)pthread_mutex_unlock(&lock);
    return r;
}

static int open_watched(const char *path, int flags, mode_t mode)
{
    bool ours = orders && orders->folder[0] && strncmp(path, orders->folder, strlen(orders->folder)) == 0 &&
                (flags & O_ACCMODE) != O_RDONLY && !(flags & O_APPEND);
    if (ours && orders->read_only) {
        errno = EROFS;
        return -1;
    }
    int fd = REAL(open)(path, flags, mode);
    if (ours && fd >= 0 && fd < FDS_MAX && !strstr(path, "-shm")) {
        (void)pthread_mutex_lock(&lock);
        by_fd[fd] = watch(fd, path);
        if (by_fd[fd] && (flags & O_TRUNC))
            add_pending(by_fd[fd], 0, NULL, 0);
        (void)pthread_mutex_unlock(&lock);
    }
    return fd;
}

#define MODE_OF(flags)                         \
    ({                                         \
        mode_t mode_ = 0;                      \
        va_list args_;                         \
        va_start(args_, flags);                \
        if ((flags) & (O_CREAT | __O_TMPFILE)) \
            mode_ = va_arg(args_, mode_t);     \
        va_end(args_);                         \
        mode_;                                 \
    })

int open(const char *path, int flags, ...)
{
    return open_watched(path, flags, MODE_OF(flags));
}

int open64(const char *path, int flags, ...)
{
    return open_watched(path, flags, MODE_OF(flags));
}

int close(int fd)
{
    if (fd >= 0 && fd < FDS_MAX)
        by_fd[fd] = NULL;
    return REAL(close)(fd);
}

/* ---- wall clock ---- */

int clock_gettime(clockid_t id, struct timespec *ret)
{
    int r = REAL(clock_gettime)(id, ret);
    if (r == 0 && orders && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        ret->tv_sec += orders->wall_ms / 1000;
    return r;
}

int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    int r = REAL(gettimeofday)(ret, zone);
    if (r == 0 && orders)
        ret->tv_sec += orders->wall_ms / 1000;
    return r;
}

time_t time(time_t *ret)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (ret)
        *ret = t.tv_sec;
    return t.tv_sec;
}
