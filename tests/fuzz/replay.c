/* Runs a fuzz target on saved inputs in builds without libFuzzer. The arguments are input files or folders of
 * inputs, including inputs that once made the target fail. SIGALRM fires periodically, as under libFuzzer, so
 * targets must restart interrupted calls. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "common/base/cleanup.h"
#include "fuzz.h"

#define INPUT_MAX (1u << 20)
#define ALARM_US  250

/* Returns the number of inputs run: 1, or 0 if the file cannot be read. */
static int run_file(const char *path)
{
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "rbe");
    if (!file)
        return 0;
    _cleanup_(mf_freep) uint8_t *room = malloc(INPUT_MAX);
    if (!room)
        return 0;
    size_t size = fread(room, 1, INPUT_MAX, file);
    /* The buffer has exactly the input's size, so that a sanitizer detects reads past its end. */
    _cleanup_(mf_freep) uint8_t *input = malloc(size > 0 ? size : 1);
    if (!input)
        return 0;
    memcpy(input, room, size);
    (void)LLVMFuzzerTestOneInput(input, size);
    return 1;
}

static int run_folder(const char *path)
{
    DIR *folder = opendir(path);
    int n = 0;
    if (!folder)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        n += run_file(file);
    }
    (void)closedir(folder);
    return n;
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* As in libFuzzer, the handler has no SA_RESTART, so blocking calls fail with EINTR. */
static void start_alarm(void)
{
    const struct sigaction action = {.sa_handler = on_alarm};
    const struct timeval every = {.tv_usec = ALARM_US};
    const struct itimerval timer = {.it_interval = every, .it_value = every};
    MF_MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

int main(int argc, char **argv)
{
    int n = 0;
    start_alarm();
    for (int i = 1; i < argc; i++) {
        struct stat status;
        if (stat(argv[i], &status) == 0)
            n += S_ISDIR(status.st_mode) ? run_folder(argv[i]) : run_file(argv[i]);
    }
    printf("%d inputs\n", n);
    return n > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
