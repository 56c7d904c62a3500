/* The devices of a farm of its own: what this machine has, and what was asked for. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/tune/tune_child.h"
#include "common/base/text.h"

#define LIST_MAX (1u << 20)

/* "cpu:0         cpu-znver4/2: AMD EPYC, avx512"; other lines go on about a device or say what was left out. */
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
        return mf_cli_fail(MF_EXIT_FAILED, "make a pipe: %s", strerrordesc_np(errno));
    pid_t pid = mf_tune_spawn(argv, ends[1], STDERR_FILENO);
    (void)close(ends[1]);
    while (pid > 0 && ((n = read(ends[0], piece, sizeof(piece))) > 0 || (n < 0 && errno == EINTR))) {
        if (n > 0)
            (void)mf_buf_add(text, piece, (size_t)n);
    }
    (void)close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s --list-devices did not say what there is here", path);
    return 0;
}

/* sim:<class>:<ordinal>… is told by its name. */
static bool read_simulated(const char *name, struct mf_tune_device *ret)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    const char *colon = strncmp(name, "sim:", 4) == 0 ? strchr(name + 4, ':') : NULL;

    if (!colon || (size_t)(colon - name - 4) >= sizeof(class))
        return false;
    mf_format(class, sizeof(class), "%.*s", (int)(colon - name - 4), name + 4);
    return mf_device_class_parse(class, &ret->class) == 0 && mf_copy(ret->name, sizeof(ret->name), name) == 0;
}

static int choose_named(const char *asked, const struct mf_tune_device *there, size_t n_there,
                        struct mf_tune_device *ret, size_t *ret_n)
{
    size_t n = 0;

    while (*asked) {
        size_t len = strcspn(asked, ","), i = 0;
        char name[96];
        mf_format(name, sizeof(name), "%.*s", (int)len, asked);
        while (i < n_there && strcmp(there[i].name, name) != 0)
            i++;
        if (n == MF_TUNE_DEVICES_MAX)
            return mf_cli_fail(MF_EXIT_USAGE, "--device: at most %d devices", MF_TUNE_DEVICES_MAX);
        if (i < n_there)
            ret[n] = there[i];
        else if (!read_simulated(name, &ret[n]))
            return mf_cli_fail(
                MF_EXIT_USAGE,
                "--device: there is no '%s' here; moefarm-worker --list-devices says what there is", name);
        n++;
        asked += len + (asked[len] == ',');
    }
    *ret_n = n;
    return 0;
}

int mf_tune_devices(const char *asked, int64_t mp, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX],
                    size_t *ret_n)
{
    struct mf_tune_device there[MF_TUNE_DEVICES_MAX];
    _cleanup_(mf_buf_release) struct mf_buf text;
    size_t n_there, n = 0;
    int code = 0;

    mf_buf_init(&text, LIST_MAX);
    /* Only simulated ones: nothing of this machine has to be asked */
    if (!asked || strncmp(asked, "sim:", 4) != 0)
        code = list_devices(&text);
    if (code != 0)
        return code;
    n_there = mf_tune_devices_read(text.data, there);
    if (asked) {
        code = choose_named(asked, there, n_there, ret, &n);
    } else {
        for (size_t gpus = 0, pass = 0; pass < 2 && gpus == 0; pass++) {
            for (size_t i = 0; i < n_there; i++) {
                bool gpu = strncmp(there[i].name, "hip:", 4) == 0;
                if (gpu == (pass == 0))
                    ret[n++] = there[i];
                gpus += gpu;
            }
        }
    }
    if (code == 0 && n == 0)
        return mf_cli_fail(MF_EXIT_FAILED, "there is no device here; moefarm-worker --list-devices says why");
    *ret_n = mp > 0 ? MF_MIN(n, (size_t)mp) : n;
    return code;
}
