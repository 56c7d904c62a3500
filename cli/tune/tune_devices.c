/* Finds the devices of a private farm: the requested devices, or else the local ones. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/tune/tune_child.h"
#include "common/base/text.h"

#define LIST_MAX (1u << 20)

/* Parses a line such as "cpu:0         cpu-znver4/2: AMD EPYC, avx512". Other lines have details of a device
 * or the reason why it was skipped. */
static bool read_device(const char *line, size_t len, struct mf_tune_device *ret)
{
    char text[256], *class;

    mf_format(text, sizeof(text), "%.*s", (int)MF_MIN(len, sizeof(text) - 1), line);
    class = text + strcspn(text, " ");
    if (class == text || !*class)
        return false;
    *class ++ = '\0';
    class += strspn(class, " ");
    class[strcspn(class, ":")] = '\0';
    return mf_device_class_parse(class, &ret->class) == 0 && mf_copy(ret->name, sizeof(ret->name), text) == 0;
}

size_t mf_tune_devices_read(const char *text, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX])
{
    size_t n = 0;

    while (*text && n < MF_TUNE_DEVICES_MAX) {
        size_t len = strcspn(text, "\n");
        n += read_device(text, len, &ret[n]);
        text += len + (text[len] == '\n');
    }
    return n;
}

static int list_devices(struct mf_buf *text)
{
    char path[MF_TUNE_PATH_MAX], piece[4096];
    char *argv[] = {path, (char *)"--list-devices", NULL};
    int ends[2], status = 0;
    ssize_t n;

    mf_tune_find_program("moefarm-worker", "worker", path);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "cannot create a pipe: %s", strerrordesc_np(errno));
    pid_t pid = mf_tune_spawn(argv, ends[1], STDERR_FILENO);
    (void)close(ends[1]);
    while (pid > 0 && ((n = read(ends[0], piece, sizeof(piece))) > 0 || (n < 0 && errno == EINTR))) {
        if (n > 0)
            (void)mf_buf_add(text, piece, (size_t)n);
    }
    (void)close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s --list-devices failed; run it to see why", path);
    return 0;
}

/* Parses the class of a simulated device from its name, sim:<class>:<ordinal>…. */
static bool read_simulated(const char *name, struct mf_tune_device *ret)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    const char *colon = strncmp(name, "sim:", 4) == 0 ? strchr(name + 4, ':') : NULL;

    if (!colon || (size_t)(colon - name - 4) >= sizeof(class))
        return false;
    mf_format(class, sizeof(class), "%.*s", (int)(colon - name - 4), name + 4);
    return mf_device_class_parse(class, &ret->class) == 0 && mf_copy(ret->name, sizeof(ret->name), name) == 0;
}

static int choose_requested(const char *requested, const struct mf_tune_device *available, size_t n_available,
                            struct mf_tune_device *ret, size_t *ret_n)
{
    size_t n = 0;

    while (*requested) {
        size_t len = strcspn(requested, ","), i = 0;
        char name[96];
        mf_format(name, sizeof(name), "%.*s", (int)len, requested);
        while (i < n_available && strcmp(available[i].name, name) != 0)
            i++;
        if (n == MF_TUNE_DEVICES_MAX)
            return mf_cli_fail(MF_EXIT_USAGE, "--device: more than %d devices; give fewer",
                               MF_TUNE_DEVICES_MAX);
        if (i < n_available)
            ret[n] = available[i];
        else if (!read_simulated(name, &ret[n]))
            return mf_cli_fail(
                MF_EXIT_USAGE,
                "--device '%s': no such device here; list the devices with moefarm-worker --list-devices",
                name);
        n++;
        requested += len + (requested[len] == ',');
    }
    *ret_n = n;
    return 0;
}

int mf_tune_devices(const char *requested, int64_t mp, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX],
                    size_t *ret_n)
{
    struct mf_tune_device available[MF_TUNE_DEVICES_MAX];
    _cleanup_(mf_buf_release) struct mf_buf text;
    size_t n_available, n = 0;
    int code = 0;

    mf_buf_init(&text, LIST_MAX);
    /* If the first requested device is simulated, assume that all are simulated, and do not list the local
     * devices. */
    if (!requested || strncmp(requested, "sim:", 4) != 0)
        code = list_devices(&text);
    if (code != 0)
        return code;
    n_available = mf_tune_devices_read(text.data, available);
    if (requested) {
        code = choose_requested(requested, available, n_available, ret, &n);
    } else {
        for (size_t gpus = 0, pass = 0; pass < 2 && gpus == 0; pass++) {
            for (size_t i = 0; i < n_available; i++) {
                bool gpu = strncmp(available[i].name, "hip:", 4) == 0;
                if (gpu == (pass == 0))
                    ret[n++] = available[i];
                gpus += gpu;
            }
        }
    }
    if (code == 0 && n == 0)
        return mf_cli_fail(MF_EXIT_FAILED,
                           "no device found; moefarm-worker --list-devices prints the reason");
    *ret_n = mp > 0 ? MF_MIN(n, (size_t)mp) : n;
    return code;
}
