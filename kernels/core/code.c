#include "kernels/core/code.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/durable_file.h"
#include "common/base/text.h"
#include "kernels/core/sibling_file.h"
#include "kernels/core/tmpdir.h"

#define COMPILE_MS_MAX  60000
#define PROCESSES_MAX   64
#define COMPILER_FOLDER "kernels"
#define COMPILER_FILE   "moefarm-compile"
#define SOURCES_MAX     96 /* enough for the option name and a digest of 64 characters */

extern char **environ;

void mf_code_define(struct mf_code *c, const char *format, ...)
{
    va_list args;
    if (c->n_defines == MF_CODE_DEFINES_MAX)
        return;
    va_start(args, format);
    (void)vsnprintf(c->defines[c->n_defines++], sizeof(c->defines[0]), format, args);
    va_end(args);
}

void mf_code_arch(struct mf_compiler *compiler, const char *gfx)
{
    mf_format(compiler->arch, sizeof(compiler->arch), "%s%s", gfx, strcmp(gfx, "sm_90") == 0 ? "a" : "");
}

bool mf_code_equal(const struct mf_code *a, const struct mf_code *b)
{
    if (strcmp(a->source, b->source) != 0 || a->n_defines != b->n_defines)
        return false;
    for (size_t i = 0; i < a->n_defines; i++) {
        if (strcmp(a->defines[i], b->defines[i]) != 0)
            return false;
    }
    return true;
}

/* ---- the cache ---- */

static void cache_folder(char path[PATH_MAX], bool *ret_is_public)
{
    const char *own = getenv("MOEFARM_CODE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own)
        mf_format(path, PATH_MAX, "%s", own);
    else if (xdg && *xdg)
        mf_format(path, PATH_MAX, "%s/moefarm/code", xdg);
    else if (home && *home)
        mf_format(path, PATH_MAX, "%s/.cache/moefarm/code", home);
    else
        mf_format(path, PATH_MAX, "/tmp/moefarm-code-%u", (unsigned)geteuid());
    *ret_is_public = !(own && *own) && !(xdg && *xdg) && !(home && *home);
}

/* Checks the owner of the cache directory, because /tmp is world-writable: another user may have created the
 * directory and put code into it. */
static int check_owner(const char *folder)
{
    struct stat st;
    if (lstat(folder, &st) < 0)
        return -errno;
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() ? 0 : -EPERM;
}

static int make_folders(char *path)
{
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        int r = mkdir(path, 0777) < 0 && errno != EEXIST ? -errno : 0;
        *at = '/';
        if (r < 0)
            return r;
    }
    return 0;
}

void mf_code_folder(char path[PATH_MAX])
{
    char inside[PATH_MAX];
    bool is_public;
    cache_folder(path, &is_public);
    mf_format(inside, sizeof(inside), "%s/", path);
    (void)make_folders(inside); /* error ignored, because a later write to the directory will report it */
}

static uint64_t hash_text(const char *text, uint64_t h)
{
    return mf_hash64(text, strlen(text) + 1, h);
}

/* The hash covers all sources, because a source may include any other source. Callers compute it with two
 * seeds, which makes a collision negligible. */
static uint64_t hash_code(const struct mf_compiler *compiler, const struct mf_code *c, uint64_t h)
{
    h = hash_text(mf_code_sources_digest, h);
    h = hash_text(compiler->arch, h);
    h = hash_text(compiler->version, h);
    h = hash_text(c->source, h);
    for (size_t i = 0; i < c->n_defines; i++)
        h = hash_text(c->defines[i], h);
    return h;
}

int mf_code_path(const struct mf_compiler *compiler, const struct mf_code *c, char path[PATH_MAX])
{
    char folder[PATH_MAX];
    bool is_public;
    cache_folder(folder, &is_public);
    int n = snprintf(path, PATH_MAX, "%s/%.*s-%s-%016llx%016llx", folder, (int)strcspn(c->source, "."),
                     c->source, compiler->arch, (unsigned long long)hash_code(compiler, c, MF_HASH_SEED),
                     (unsigned long long)hash_code(compiler, c, ~MF_HASH_SEED));
    int r = n < PATH_MAX ? make_folders(path) : -ENAMETOOLONG;
    return r == 0 && is_public ? check_owner(folder) : r;
}

void mf_code_part_path(const char *path, char part[PATH_MAX])
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
        bits = mf_now_ns() ^ (uint64_t)getpid() << 40;
    mf_format(part, PATH_MAX, "%s.%016llx", path, (unsigned long long)bits);
}

bool mf_code_fallback_path(const char *path, char fallback[PATH_MAX])
{
    const char *folder = getenv(MF_CODE_FALLBACK_ENV), *slash = strrchr(path, '/');
    if (!folder || !*folder || !slash)
        return false;
    mf_format(fallback, PATH_MAX, "%s%s", folder, slash);
    return true;
}

/* Returns true if the code object exists in the cache or at the fallback path. Sets `path` to its location.
 */
static bool find_code(char path[PATH_MAX])
{
    char fallback[PATH_MAX];
    if (access(path, R_OK) == 0)
        return true;
    if (!mf_code_fallback_path(path, fallback) || access(fallback, R_OK) < 0)
        return false;
    (void)mf_copy(path, PATH_MAX, fallback);
    return true;
}

int mf_code_check_writable(const char *folder)
{
    static const char some[65536];
    char path[PATH_MAX];
    mf_format(path, sizeof(path), "%s/room.XXXXXX", folder);
    _cleanup_(mf_closep) int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = mf_write_all(fd, some, sizeof(some));
    (void)unlink(path);
    return r;
}

/* ---- compiling ---- */

struct child {
    pid_t pid;
    int log; /* read end of the pipe for stdout and stderr */
    struct mf_tmpdir tmpdir;
    size_t code;
    char out[PATH_MAX]; /* output file; "" for a version query */
    uint64_t end_ns;
    char why[MF_CODE_WHY_MAX];
    size_t n_why;
};

static int spawn(char *const *argv, char *const *env, int *ret_log, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t own;
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return -errno;
    int r = -posix_spawn_file_actions_init(&actions);
    if (r == 0) {
        /* Without this, the compiler would inherit a setting of this process that ignores SIGCHLD, and could
         * then not read the exit status of its own children. */
        (void)sigemptyset(&own);
        (void)sigaddset(&own, SIGCHLD);
        (void)posix_spawnattr_init(&attr);
        (void)posix_spawnattr_setsigdefault(&attr, &own);
        (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
        r = -posix_spawn_file_actions_adddup2(&actions, pipes[1], STDERR_FILENO);
        if (r == 0)
            r = -posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO);
        if (r == 0)
            r = -posix_spawn(ret_pid, argv[0], &actions, &attr, argv, env);
        (void)posix_spawnattr_destroy(&attr);
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    (void)close(pipes[1]);
    if (r < 0) {
        (void)close(pipes[0]);
        return r;
    }
    *ret_log = pipes[0];
    return 0;
}

static void format_sources_option(char ret[SOURCES_MAX])
{
    mf_format(ret, SOURCES_MAX, MF_CODE_SOURCES_OPTION "%s", mf_code_sources_digest);
}

static int start_compile(const struct mf_compiler *compiler, const struct mf_code *c, size_t i,
                         const char *out, struct child *ret)
{
    char program[PATH_MAX], defines[MF_CODE_DEFINES_MAX][48];
    char sources[SOURCES_MAX];
    const char *argv[MF_CODE_DEFINES_MAX + 8] = {program,        sources,   compiler->vendor,
                                                 compiler->arch, c->source, out};
    int r = mf_sibling_file(COMPILER_FILE, COMPILER_FOLDER, program);
    if (r < 0)
        return r;
    for (size_t d = 0; d < c->n_defines; d++) {
        mf_format(defines[d], sizeof(defines[d]), "-D%s", c->defines[d]);
        argv[6 + d] = defines[d];
    }
    format_sources_option(sources);
    *ret = (struct child){.code = i, .end_ns = mf_now_ns() + COMPILE_MS_MAX * UINT64_C(1000000)};
    (void)mf_copy(ret->out, sizeof(ret->out), out);
    mf_tmpdir_make(&ret->tmpdir);
    _cleanup_(mf_freep) char **env = mf_tmpdir_environment(&ret->tmpdir);
    r = env ? spawn((char *const *)(uintptr_t)argv, env, &ret->log, &ret->pid) : -ENOMEM;
    if (r < 0)
        mf_tmpdir_remove(&ret->tmpdir);
    return r;
}

/* Reads the output of a child into c->why and discards the part that does not fit. Returns false at the end
 * of the output. */
static bool read_output(struct child *c)
{
    char rest[512];
    bool room = c->n_why + 1 < sizeof(c->why);
    ssize_t n = room ? read(c->log, c->why + c->n_why, sizeof(c->why) - 1 - c->n_why)
                     : read(c->log, rest, sizeof(rest));
    if (n > 0 && room)
        c->n_why += (size_t)n;
    return n > 0 || (n < 0 && errno == EINTR);
}

/* Returns true if the child has produced its result: the output file or, for a version query, a name and a
 * number. */
static bool has_output(const struct child *c)
{
    char path[PATH_MAX];
    size_t name = strspn(c->why, "abcdefghijklmnopqrstuvwxyz");
    if (!*c->out)
        return name > 0 && c->why[name] == ' ' && c->why[name + 1] >= '0' && c->why[name + 1] <= '9';
    (void)mf_copy(path, sizeof(path), c->out);
    return find_code(path);
}

/* Reaps a child, after killing it if `late` is set, and completes c->why. Returns 0 if the compiler
 * succeeded. */
static int end_child(struct child *c, bool late)
{
    int status = 0;
    pid_t ended;
    if (late)
        (void)kill(c->pid, SIGKILL);
    do
        ended = waitpid(c->pid, &status, 0);
    while (ended < 0 && errno == EINTR);
    /* If the host program ignores SIGCHLD or reaps all children, the exit status is lost. The output is
     * checked instead. */
    if (ended < 0)
        status = has_output(c) ? 0 : 1 << 8;
    mf_closep(&c->log);
    mf_tmpdir_remove(&c->tmpdir);
    if (late)
        mf_format(c->why, sizeof(c->why), "the compiler exceeded its time limit of %d s",
                  COMPILE_MS_MAX / 1000);
    else if (WIFSIGNALED(status))
        mf_format(c->why + c->n_why, sizeof(c->why) - c->n_why, "%sthe compiler was killed by signal %d (%s)",
                  c->n_why ? "; " : "", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return !late && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ENOEXEC;
}

/* Waits until at least one child has ended. Removes these children from the list and stores their results. */
static void reap_children(struct child *children, int *n, const struct mf_code *codes,
                          char (*paths)[PATH_MAX], char (*whys)[MF_CODE_WHY_MAX], int *made)
{
    struct pollfd fds[PROCESSES_MAX];
    int before = *n;
    while (*n == before) {
        for (int i = 0; i < *n; i++)
            fds[i] = (struct pollfd){.fd = children[i].log, .events = POLLIN};
        (void)poll(fds, (nfds_t)*n, 1000);
        for (int i = *n - 1; i >= 0; i--) {
            struct child *c = &children[i];
            bool late = mf_now_ns() > c->end_ns;
            if (!late && (!(fds[i].revents & (POLLIN | POLLHUP)) || read_output(c)))
                continue;
            int r = end_child(c, late);
            *made += r == 0;
            if (r == 0 && paths)
                (void)find_code(paths[c->code]);
            if (r < 0 && paths)
                paths[c->code][0] = '\0';
            if (r < 0 && whys)
                mf_format(whys[c->code], MF_CODE_WHY_MAX, "%s",
                          c->n_why || c->why[0] ? c->why : codes[c->code].source);
            children[i] = children[--*n];
        }
    }
}

int mf_code_make(const struct mf_compiler *compiler, const struct mf_code *codes, size_t n, int processes,
                 char (*paths)[PATH_MAX], char (*whys)[MF_CODE_WHY_MAX])
{
    struct child children[PROCESSES_MAX];
    int running = 0, made = 0;
    for (size_t i = 0; i < n; i++) {
        char path[PATH_MAX], fallback[PATH_MAX];
        int r = mf_code_path(compiler, &codes[i], path);
        if (r < 0)
            r = mf_code_fallback_path(path, fallback) ? mf_copy(path, sizeof(path), fallback) : r;
        bool found = r == 0 && find_code(path);
        if (whys)
            whys[i][0] = '\0';
        if (paths)
            mf_format(paths[i], PATH_MAX, "%s", r == 0 ? path : "");
        if (r < 0 && whys)
            mf_format(whys[i], MF_CODE_WHY_MAX, "the code cache %s is not usable: %s", path, strerror(-r));
        made += found;
        if (r < 0 || found)
            continue;
        if (running == MF_MIN(processes, PROCESSES_MAX))
            reap_children(children, &running, codes, paths, whys, &made);
        r = start_compile(compiler, &codes[i], i, path, &children[running]);
        if (r == 0)
            running++;
        else if (paths)
            paths[i][0] = '\0';
        if (r < 0 && whys)
            mf_format(whys[i], MF_CODE_WHY_MAX, "starting %s: %s", COMPILER_FILE, strerror(-r));
    }
    while (running > 0)
        reap_children(children, &running, codes, paths, whys, &made);
    return made;
}

int mf_code_version(const char *vendor, char version[64], char *why, size_t why_cap)
{
    char program[PATH_MAX];
    int r = mf_sibling_file(COMPILER_FILE, COMPILER_FOLDER, program);
    char sources[SOURCES_MAX];
    const char *argv[] = {program, sources, "--version", vendor, NULL};
    struct child c = {.end_ns = mf_now_ns() + COMPILE_MS_MAX * UINT64_C(1000000)};
    format_sources_option(sources);
    if (r == 0)
        r = spawn((char *const *)(uintptr_t)argv, environ, &c.log, &c.pid);
    if (r < 0) {
        mf_format(why, why_cap, "starting %s: %s", COMPILER_FILE, strerror(-r));
        return -ENOENT;
    }
    while (read_output(&c))
        ;
    r = end_child(&c, false);
    c.why[strcspn(c.why, "\n")] = '\0';
    if (r < 0) {
        mf_format(why, why_cap, "%s", c.why);
        return -ENOENT;
    }
    mf_format(version, 64, "%s", c.why);
    return 0;
}
