#include "worker/sandbox/task_count.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define PROCESSES_MAX 8192

struct tree {
    pid_t pids[PROCESSES_MAX];
    int n, tasks;
};

/* The kernel's struct linux_dirent64. */
struct entry {
    uint64_t inode;
    int64_t offset;
    uint16_t bytes;
    uint8_t type;
    char name[];
};

/* Appends the children that are listed in the file of one task. */
static void add_children(struct tree *t, int folder, const char *task)
{
    char path[64], text[4096];
    pid_t pid = 0;
    ssize_t n;
    mf_format(path, sizeof(path), "%s/children", task);
    _cleanup_(mf_closep) int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && (n = read(fd, text, sizeof(text))) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid > 0 && t->n < PROCESSES_MAX)
                t->pids[t->n++] = pid;
            pid = 0;
        }
    }
}

/* Counts the tasks of a process and appends its children. */
static void add_process(struct tree *t, const char *process)
{
    _Alignas(struct entry) char list[4096];
    char path[64];
    long n;
    mf_format(path, sizeof(path), "/proc/%s/task", process);
    _cleanup_(mf_closep) int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (folder >= 0 && (n = syscall(SYS_getdents64, folder, list, sizeof(list))) > 0) {
        for (long at = 0; at < n;) {
            const struct entry *e = (const struct entry *)(const void *)(list + at);
            at += e->bytes;
            if (e->name[0] == '.')
                continue;
            t->tasks++;
            add_children(t, folder, e->name);
        }
    }
}

int mf_task_count(int max)
{
    struct tree t = {.n = 0};
    add_process(&t, "self");
    t.tasks = 0; /* this process does not count */
    for (int i = 0; i < t.n && t.tasks <= max; i++) {
        char name[16];
        mf_format(name, sizeof(name), "%d", (int)t.pids[i]);
        add_process(&t, name);
    }
    return t.n == PROCESSES_MAX ? max + 1 : t.tasks;
}
