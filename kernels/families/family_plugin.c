#include "kernels/families/family_plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define LOAD_LIMIT_S 10
#define PATH_CAP     4096

typedef const struct mf_family *(*entry_fn)(void);

static int hash_file(const char *path, uint64_t *hash)
{
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    char part[8192];
    if (!f)
        return -errno;
    for (size_t n; (n = fread(part, 1, sizeof(part), f)) > 0;)
        *hash = mf_hash64(part, n, *hash);
    return ferror(f) ? -EIO : 0;
}

/* Returns the owner of the existing family with that name, or NULL if the name is free. */
static const char *name_taken(const struct mf_family_plugins *p, const char *name)
{
    if (mf_family_find(NULL, name))
        return "this build";
    for (size_t i = 0; i < p->n; i++) {
        if (strcmp(p->families[i]->name, name) == 0)
            return "another shared object";
    }
    return NULL;
}

static int check(const struct mf_family_plugins *p, const struct mf_family *f, char *why, size_t cap)
{
    if (!f) {
        mf_format(why, cap, "%s returned no family", MF_FAMILY_ENTRY);
        return -EINVAL;
    }
    if (f->api != MF_FAMILY_API) {
        mf_format(
            why, cap,
            "built for family API version %d, this build has %d; recompile it with kernels/core/family.h of "
            "this version",
            f->api, MF_FAMILY_API);
        return -EPROTO;
    }
    if (!f->name || !mf_is_name(f->name, MF_FAMILY_NAME_MAX - 1)) {
        mf_format(why, cap, "the family name must be 1 to %d letters, digits, '_', '.' or '-'",
                  MF_FAMILY_NAME_MAX - 1);
        return -EINVAL;
    }
    const char *missing = !f->device_kind ? "device_kind"
                          : !f->enumerate ? "enumerate"
                          : !f->open      ? "open"
                          : !f->launch    ? "launch"
                          : !f->close     ? "close"
                                          : NULL;
    if (missing) {
        mf_format(why, cap, "family %s has no %s", f->name, missing);
        return -EINVAL;
    }
    const char *taken = name_taken(p, f->name);
    if (taken) {
        mf_format(why, cap, "%s already has a family %s", taken, f->name);
        return -EEXIST;
    }
    return 0;
}

static int load(struct mf_family_plugins *p, const char *path, void *handle, char *why, size_t cap)
{
    uint64_t hash = MF_HASH_SEED;
    void *symbol = dlsym(handle, MF_FAMILY_ENTRY);
    entry_fn entry;
    if (!symbol) {
        mf_format(why, cap, "the shared object does not export %s", MF_FAMILY_ENTRY);
        return -ENOENT;
    }
    memcpy(&entry, &symbol, sizeof(entry));
    const struct mf_family *f = entry();
    int r = check(p, f, why, cap);
    if (r < 0)
        return r;
    r = hash_file(path, &hash);
    if (r < 0) {
        mf_format(why, cap, "cannot read the shared object: %s", strerror(-r));
        return r;
    }
    p->handles[p->n] = handle;
    p->hashes[p->n] = hash;
    p->families[p->n++] = f;
    return 0;
}

int mf_family_plugin_load(struct mf_family_plugins *p, const char *path, char *why, size_t why_cap)
{
    /* the path with a slash, because dlopen searches the system's folders for a name without a slash */
    char here[PATH_CAP];
    if (p->n == MF_PLUGINS_MAX) {
        mf_format(why, why_cap, "at most %d shared objects can be loaded", MF_PLUGINS_MAX);
        return -E2BIG;
    }
    mf_format(here, sizeof(here), "%s%s", strchr(path, '/') ? "" : "./", path);
    void *handle = dlopen(here, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        mf_format(why, why_cap, "%s", dlerror());
        return -ENOEXEC;
    }
    int r = load(p, here, handle, why, why_cap);
    if (r < 0)
        (void)dlclose(handle);
    return r;
}

/* Waits for the child. Returns 0 if the child exited with status 0. */
static int await(pid_t child, char *why, size_t cap)
{
    const struct timespec limit = {.tv_sec = LOAD_LIMIT_S};
    sigset_t set, before;
    int status;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (sigtimedwait(&set, NULL, &limit) < 0 && errno == EAGAIN &&
            waitpid(child, &status, WNOHANG) == 0) {
            (void)kill(child, SIGKILL);
            (void)waitpid(child, &status, 0);
            (void)sigprocmask(SIG_SETMASK, &before, NULL);
            mf_format(why, cap, "loading timed out after %d s", LOAD_LIMIT_S);
            return -ETIMEDOUT;
        }
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (WIFSIGNALED(status)) {
        mf_format(why, cap, "loading crashed with signal %d (%s)", WTERMSIG(status),
                  strsignal(WTERMSIG(status)));
        return -EFAULT;
    }
    if (WEXITSTATUS(status) != 0) {
        mf_format(why, cap, "loading ended the process with exit status %d", WEXITSTATUS(status));
        return -EFAULT;
    }
    return 0;
}

int mf_family_plugin_load_guarded(struct mf_family_plugins *p, const char *path, char *why, size_t why_cap)
{
    /* the child restores default signal actions, so a crash ends it and the parent reads the signal */
    pid_t child = fork();
    if (child < 0) {
        mf_format(why, why_cap, "cannot start a child process for loading: %s", strerror(errno));
        return -errno;
    }
    if (child == 0) {
        struct mf_family_plugins trial = {0};
        char unused[MF_REASON_MAX];
        static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
        for (size_t i = 0; i < MF_ARRAY_LEN(signals); i++)
            (void)signal(signals[i], SIG_DFL);
        (void)alarm(2 * LOAD_LIMIT_S); /* in case the parent dies first */
        (void)mf_family_plugin_load(&trial, path, unused, sizeof(unused));
        _exit(0);
    }
    int r = await(child, why, why_cap);
    return r < 0 ? r : mf_family_plugin_load(p, path, why, why_cap);
}

void mf_family_plugins_drop_last(struct mf_family_plugins *p)
{
    (void)dlclose(p->handles[--p->n]);
}

void mf_family_plugins_release(struct mf_family_plugins *p)
{
    while (p->n > 0)
        mf_family_plugins_drop_last(p);
}

void mf_kernel_revision_with(uint64_t hash, char buf[MF_REVISION_MAX])
{
    if (hash == 0)
        mf_format(buf, MF_REVISION_MAX, "%s", mf_kernel_revision());
    else
        mf_format(buf, MF_REVISION_MAX, "%s-%016" PRIx64, mf_kernel_revision(), hash);
}
