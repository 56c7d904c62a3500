#include "cli/bench/operators.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/support/cli.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/sibling_file.h"

#define FIXED_WORDS 8 /* words of the interpreter's command line besides the modules and the own arguments */

extern char **environ;

void mf_operators_opts(struct mf_operators_options *o, struct mf_opt opts[MF_OPERATORS_OPTS])
{
    o->family_py = (struct mf_opt_list){.values = o->modules, .max = MF_OPERATORS_MAX};
    opts[0] = (struct mf_opt){.name = "python",
                              .type = MF_OPT_TEXT,
                              .value = &o->python,
                              .argument = "PATH",
                              .help = "Python interpreter that imports AITER, vLLM or SGLang"};
    opts[1] = (struct mf_opt){
        .name = "family-py",
        .type = MF_OPT_LIST,
        .value = &o->family_py,
        .argument = "MODULE",
        .help = "Python file or module with kernel families, such as moefarm.families.aiter (repeatable)"};
}

bool mf_operators_have(const struct mf_operators *operators, const char *family)
{
    for (size_t i = 0; operators && i < operators->families.n; i++) {
        if (strcmp(operators->families.families[i]->name, family) == 0)
            return true;
    }
    return false;
}

static int check_options(const struct mf_operators_options *o)
{
    if (!o->python || o->family_py.n == 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--python and --family-py need each other; for example --python "
                                          "/opt/venv/bin/python3 --family-py moefarm.families.aiter");
    if (o->python[0] != '/' || access(o->python, X_OK) < 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--python %s: expected the absolute path of an interpreter, such as "
                           "/opt/venv/bin/python3",
                           o->python);
    return 0;
}

/* Starts `python -I -S boot.py --cli LIBRARY DEVICE MODULE… -- ARGUMENTS…`, with this command's arguments. */
static int start(const struct mf_cli *cli, const struct mf_operators_options *o, const char *device,
                 pid_t *ret)
{
    char library[PATH_MAX], boot[PATH_MAX];
    size_t n_words = FIXED_WORDS + (size_t)o->family_py.n + (size_t)cli->argc + 1, n = 0;
    _cleanup_(mf_freep) const char **argv = calloc(n_words, sizeof(*argv));
    if (!argv)
        return mf_cli_out_of_memory();
    if (mf_sibling_file(MOEFARM_CLI_FILE, "cli", library) < 0 ||
        mf_sibling_file(MOEFARM_CLI_BOOT, ".", boot) < 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--python: %s or %s is missing beside this program; install the package "
                           "moefarm-worker",
                           MOEFARM_CLI_FILE, MOEFARM_CLI_BOOT);
    const char *const words[] = {o->python, "-I", "-S", boot, "--cli", library, device};
    for (size_t i = 0; i < MF_ARRAY_LEN(words); i++)
        argv[n++] = words[i];
    for (int i = 0; i < o->family_py.n; i++)
        argv[n++] = o->family_py.values[i];
    argv[n++] = "--";
    for (int i = 0; i < cli->argc; i++)
        argv[n++] = cli->argv[i];
    int r = posix_spawn(ret, o->python, NULL, NULL, (char *const *)(uintptr_t)argv, environ);
    return r == 0 ? 0 : mf_cli_fail(MF_EXIT_FAILED, "--python %s: %s", o->python, strerrordesc_np(r));
}

static int wait_for(pid_t pid, const char *python)
{
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return mf_cli_fail(MF_EXIT_FAILED, "--python %s: %m", python);
    }
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return mf_cli_fail(MF_EXIT_FAILED,
                       "the interpreter %s ended with signal %d (%s) while it ran the row after the last one "
                       "printed",
                       python, WTERMSIG(status), strsignal(WTERMSIG(status)));
}

bool mf_operators_run(const struct mf_cli *cli, const struct mf_operators_options *o, const char *device,
                      int *ret_code)
{
    pid_t pid;
    if (cli->operators || (!o->python && o->family_py.n == 0))
        return false;
    *ret_code = check_options(o);
    if (*ret_code == 0)
        *ret_code = start(cli, o, device, &pid);
    if (*ret_code == 0)
        *ret_code = wait_for(pid, o->python);
    return true;
}
