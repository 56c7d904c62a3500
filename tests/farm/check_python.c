/* Tests Python families. examples/family_plain.py offers a step, which the farm verifies, times and races.
 * Other families in this file misbehave. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/table_columns.h"
#include "support/text_file.h"

#define LARGE \
    "4,1024,512,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
#define PYTHON "/usr/bin/python3"
#define PLAIN  MF_SOURCE_DIR "/examples/family_plain.py"
/* needs "import sys" */
#define IMPORT_PLAIN                                     \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n" \
    "import family_plain as p\n"
/* libfmoe cannot run Python families, so that only consumer "any" ranks them. */
#define ANY "&consumer=any"

static struct farm farm;

static void stop_farm(void)
{
    farm_stop(&farm);
}

/* Starts a worker with a Python family, and with the example family, because its folder must be readable for
 * families that import it. The other families must not offer GEMMs, so that only the Python family offers
 * them. option: a further option, or NULL. */
static void start_worker(const char *file, const char *families, const char *option)
{
    const char *args[] = {"--device",    "cpu:0", "--families", families, "--python", PYTHON,
                          "--family-py", file,    option,       NULL,     NULL};
    const char *const both[] = {"--device",    "cpu:0", "--families",  families, "--python", PYTHON,
                                "--family-py", PLAIN,   "--family-py", file,     option,     NULL};
    farm_start_worker(&farm, 0, strcmp(file, PLAIN) == 0 ? args : both);
    farm_wait_workers(&farm, 1);
}

static void start_farm(const char *file, const char *families)
{
    farm_start(&farm, 1000);
    start_worker(file, families, NULL);
}

static int tune(const char *file, const char *families, const char *csv, const char *query)
{
    start_farm(file, families);
    return farm_run(&farm, csv, query);
}

/* Writes the template with its '@' replaced by `run` to a file in a folder of its own. */
static void write_family(const char *before, const char *run, char file[64])
{
    char text[4096];
    (void)snprintf(file, 64, "/tmp/check_python.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(file));
    (void)snprintf(file + strlen(file), 64 - strlen(file), "/odd.py");
    const char *at = strchr(before, '@');
    int n = snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - before), before, run, at + 1);
    ck_assert_int_lt(n, (int)sizeof(text));
    text_file_write(file, text);
}

static void remove_family(char file[64])
{
    ck_assert_int_eq(unlink(file), 0);
    *strrchr(file, '/') = '\0';
    ck_assert_int_eq(rmdir(file), 0);
}

/* Returns the only step of a family. */
static cJSON *step_of(int batch, const char *family, const cJSON **ret)
{
    char query[64];
    (void)snprintf(query, sizeof(query), "steps?family=%s", family);
    cJSON *steps = farm_task_list(&farm, batch, query);
    *ret = cJSON_GetArrayItem(mf_json_array(steps, "items"), 0);
    ck_assert_msg(*ret != NULL, "family %s offered no step", family);
    return steps;
}

/* The other steps of the unit continue. */
static void expect_moves(int batch)
{
    _cleanup_(cJSON_Deletep) cJSON *moves = farm_task_list(&farm, batch, "steps?family=move&status=ok");
    ck_assert_int_ge(cJSON_GetArraySize(mf_json_array(moves, "items")), 1);
}

/* The family wins for consumer "any". It has no place in the table of libfmoe, which cannot run it. */
MF_TEST(wins_for_any_consumer)
{
    int batch = tune(PLAIN, "move,plain_py", FARM_CSV_HEAD FARM_CSV_SMALL, ANY ",moefarm");
    const cJSON *step;
    _cleanup_(cJSON_Deletep) cJSON *steps = step_of(batch, "plain_py", &step);
    ck_assert_str_eq(farm_text(step, "name"), "py_layer");
    ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s", farm_text(step, "reason"));
    ck_assert_int_eq(farm_number(step, "verified"), 2); /* passed all gates */
    ck_assert_int_ge(farm_number(step, "n"), 3);
    ck_assert_double_gt(cJSON_GetObjectItem(step, "us")->valuedouble, 10);
    /* equals the reference output up to rounding to bf16 */
    ck_assert_double_le(cJSON_GetObjectItem(step, "row_err")->valuedouble, 0.01);
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    const cJSON *winner = cJSON_GetObjectItem(farm_consumer(task, "any"), "winner");
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetArrayItem(winner, 0)), "plain_py:py_layer");
    const char *why = farm_text(farm_consumer(task, "moefarm"), "reason");
    ck_assert_msg(strstr(why, "no correct step covers gemm1+gemm2") != NULL, "%s", why);
}

#define SMALL                                                                       \
    "2,64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16," \
    "QuantType.No,1,0"
#define FORM_HEAD SHAPE_COLUMNS ",form\n"

static const struct {
    const char *csv, *message;
} rejected_shapes[] = {
    {FARM_CSV_HEAD LARGE, "multiply-adds"},
    {FORM_HEAD SMALL ",b1\n", "without a form, not 'b1'"},
    {FORM_HEAD SMALL ",limit:5+b2\n", "without a form, not 'limit:5+b2'"},
    {FORM_HEAD SMALL ",ep:0/64\n", "does not support expert parallelism"},
};

static void expect_rejection(int batch, const char *family, const char *message)
{
    _cleanup_(cJSON_Deletep) cJSON *why = farm_task_list(&farm, batch, "rejections");
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(why, "items")) {
        if (strcmp(farm_text(item, "family"), family) == 0 && strstr(farm_text(item, "reason"), message))
            return;
    }
    _cleanup_(mf_freep) char *text = cJSON_PrintUnformatted(why);
    ck_abort_msg("no rejection of %s '%s' in: %s", family, message, text);
}

MF_TEST(rejects_with_a_reason, .rows = MF_ARRAY_LEN(rejected_shapes))
{
    int batch = tune(PLAIN, "move,plain_py", rejected_shapes[_i].csv, ANY);
    expect_rejection(batch, "plain_py", rejected_shapes[_i].message);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=plain_py");
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(steps, "items")), 0);
}

/* The example family with a flaw. FLAW replaces one function. */
#define FLAWED                                                   \
    "import array, ctypes, os, signal, sys, time\n" IMPORT_PLAIN \
    "from moefarm.family import Family, Kernel\n"                \
    "class Odd(p.PlainLayer):\n"                                 \
    "    def launch(self, tensors, stream):\n"                   \
    "        super().launch(tensors, stream)\n"                  \
    "        y = tensors['y']\n"                                 \
    "        out = y.memory()\n"                                 \
    "        @\n"                                                \
    "class OddFamily(p.Plain):\n"                                \
    "    name = 'odd'\n"                                         \
    "    def open(self, candidate, shape):\n"                    \
    "        return Odd(shape)\n"                                \
    "family = OddFamily()\n"

/* clang-format off */
static const struct {
    const char *launch, *status, *message;
} bad_launches[] = {
    {"out[:] = array.array('H', bytes(y.nbytes))", "wrong", "mismatch"},
    {"out[5] = 0x7fc0", "wrong", ""},                                    /* NaN */
    {"out[64:128] = array.array('H', [0x7fc0] * 64)", "wrong", ""},      /* a row of NaN */
    {"ctypes.memset(y.pointer + y.nbytes, 7, 64)", "wrong", "past the end"},   /* raw pointer past the end */
    {"os.kill(os.getpid(), signal.SIGSEGV)", "crash", "signal 11"},
    {"ctypes.string_at(0)", "crash", "signal 11"},
    {"os._exit(7)", "crash", "exit code 7"},
    {"sys.exit(8)", "crash", "exit code 8"},
    {"sys.stderr.write('no such kernel\\n'); sys.stderr.flush(); os._exit(1)", "crash", "no such kernel"},
    {"time.sleep(1000)", "hang", "silent for more than"},
    {"bytearray(1 << 60)", "no_memory", "MemoryError"},
    {"raise RuntimeError('too tired for this')", "unsupported", "RuntimeError: too tired for this"},
    {"tensors['q']", "unsupported", "KeyError: 'q'"},
    {"tensors['x'].memory()[0] = 1", "unsupported", "read-only"},
};
/* clang-format on */

static void expect_step(int batch, const char *wanted, const char *message)
{
    const cJSON *step;
    _cleanup_(cJSON_Deletep) cJSON *steps = step_of(batch, "odd", &step);
    const char *status = farm_text(step, "status"), *reason = farm_text(step, "reason");
    /* if the step killed two runners, its status is quarantined and its reason names the cause */
    bool deadly = strcmp(wanted, "crash") == 0 || strcmp(wanted, "hang") == 0;
    ck_assert_msg(strcmp(status, wanted) == 0 || (deadly && strcmp(status, "quarantined") == 0), "%s: %s",
                  status, reason);
    ck_assert_msg(strstr(reason, message) != NULL, "%s: %s", status, reason);
}

MF_TEST(reports_bad_launches, .rows = MF_ARRAY_LEN(bad_launches))
{
    char file[64];
    write_family(FLAWED, bad_launches[_i].launch, file);
    /* only a hang may exceed the time cap; a long time cap allows for a busy machine */
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL,
                     strcmp(bad_launches[_i].status, "hang") == 0 ? ANY "&time_cap_ms=1000"
                                                                  : ANY "&time_cap_ms=30000");
    remove_family(file);
    expect_step(batch, bad_launches[_i].status, bad_launches[_i].message);
    expect_moves(batch);
}

#define BROKEN                                                             \
    "import os, signal, sys, time\n"                                       \
    "from moefarm.family import Candidate, Family, Kernel, Rejection\n"    \
    "class Nothing(Kernel):\n"                                             \
    "    def launch(self, tensors, stream): pass\n"                        \
    "class Odd(Family):\n"                                                 \
    "    name = 'odd'\n"                                                   \
    "    def enumerate(self, shape, device): yield shape.candidate('a')\n" \
    "    def open(self, candidate, shape): return Nothing()\n"             \
    "    @\n"                                                              \
    "family = Odd()\n"

/* Families with errors outside of `launch`: in a step's result, or in a rejection without a status. */
/* clang-format off */
static const struct {
    const char *code, *status, *message;
} broken[] = {
    {"def open(self, candidate, shape): raise ValueError('no compiler')", "unsupported",
     "ValueError: no compiler"},
    {"def open(self, candidate, shape): os.kill(os.getpid(), 11)", "crash", "signal 11"},
    {"def open(self, candidate, shape): time.sleep(1000)", "hang", "silent for more than"},
    {"pass", "wrong", ""}, /* writes no output */
    {"def convert_weights(self, candidate, shape, weights): raise TypeError(str(sorted(weights)))",
     "unsupported", "TypeError: ['w1', 'w2']"},
    {"def enumerate(self, shape, device): raise KeyError('gfx')", NULL, "KeyError: 'gfx'"},
    {"def enumerate(self, shape, device): os.kill(os.getpid(), 11)", NULL, "crashed with signal 11"},
    {"def enumerate(self, shape, device): sys.exit(3)", NULL, "ended the process with exit code 3"},
    {"def enumerate(self, shape, device): yield 1", NULL, "yielded int, not a Candidate"},
    {"def enumerate(self, shape, device): yield Candidate('a b', ['gemm1'], [], [])", NULL,
     "name missing or invalid"},
    {"def enumerate(self, shape, device): yield Rejection('a', 'b', 'c' * (9 << 20))", NULL,
     "enumerate sent an invalid message"},
};
/* clang-format on */

MF_TEST(reports_broken_families, .rows = MF_ARRAY_LEN(broken))
{
    char file[64];
    write_family(BROKEN, broken[_i].code, file);
    bool hangs = broken[_i].status && strcmp(broken[_i].status, "hang") == 0;
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL,
                     hangs ? ANY "&time_cap_ms=1000" : ANY "&time_cap_ms=30000");
    remove_family(file);
    if (broken[_i].status)
        expect_step(batch, broken[_i].status, broken[_i].message);
    else
        expect_rejection(batch, "odd", broken[_i].message);
    expect_moves(batch);
}

#define SLOW_CONVERSION                                                         \
    "import sys, time\n" IMPORT_PLAIN "class Odd(p.Plain):\n"                   \
    "    name = 'odd'\n"                                                        \
    "    def convert_weights(self, candidate, shape, weights): time.sleep(@)\n" \
    "family = Odd()\n"

/* The measured time does not include the conversion of weights. */
MF_TEST(does_not_time_conversions)
{
    char file[64];
    write_family(SLOW_CONVERSION, "0.2", file);
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL, ANY "&time_cap_ms=30000");
    remove_family(file);
    const cJSON *step;
    _cleanup_(cJSON_Deletep) cJSON *steps = step_of(batch, "odd", &step);
    ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s", farm_text(step, "reason"));
    ck_assert_double_lt(cJSON_GetObjectItem(step, "us")->valuedouble, 200e3);
}

/* With one flaw, one output in 64 is slightly beyond the mismatch tolerance; with the other, each run takes
 * 0.2 s. Batch options decide whether the step passes. */
/* clang-format off */
static const struct {
    const char *what, *flaw;
    const char *lenient, *strict; /* batch options with which the step passes, and with which it fails */
    const char *status, *message; /* status and reason of the step with the strict options */
} flaws[] = {
    {"err_ratio",
     "for i in range(0, len(out), 64): "
     "out[i] = p.bfloat16([v + (0.012 + 0.02 * abs(v)) for v in p.floats(out[i:i + 1])])[0]",
     ANY "&err_ratio=0.1", ANY "&err_ratio=0.01", "wrong", "mismatch: "},
    {"time_cap_ms", "time.sleep(0.2)", ANY "&time_cap_ms=30000", ANY "&time_cap_ms=100", "hang",
     "silent for more than 100 ms"},
};
/* clang-format on */

/* The same step passes in the lenient batch and fails in the strict batch. */
MF_TEST(applies_batch_options, .rows = MF_ARRAY_LEN(flaws))
{
    char file[64];
    write_family(FLAWED, flaws[_i].flaw, file);
    start_farm(file, "move,odd");
    for (int strict = 0; strict < 2; strict++) {
        int batch =
            farm_submit(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, strict ? flaws[_i].strict : flaws[_i].lenient);
        farm_wait_done(&farm, batch);
        expect_step(batch, strict ? flaws[_i].status : "ok", strict ? flaws[_i].message : "");
    }
    remove_family(file);
}

/* Tries to overwrite all memory files of the runner, except for the outputs' own. */
#define OVERWRITES                                                                             \
    "for fd in map(int, os.listdir('/proc/self/fd')):\n"                                       \
    "            try:\n"                                                                       \
    "                if '/memfd:' not in os.readlink('/proc/self/fd/%d' % fd): continue\n"     \
    "                os.pwrite(fd, b'A' * 4096, 0)\n"                                          \
    "                os.pwrite(os.open('/proc/self/fd/%d' % fd, os.O_RDWR), b'A' * 4096, 0)\n" \
    "            except OSError: pass"

/* No other candidate is wrong because a family writes to the inputs that all candidates share. */
MF_TEST(cannot_write_to_inputs)
{
    char file[64];
    write_family(FLAWED, OVERWRITES, file);
    start_farm(file, "move,one,odd");
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, ANY);
    remove_family(file);
    _cleanup_(cJSON_Deletep) cJSON *wrong = farm_task_list(&farm, batch, "steps?status=wrong");
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(wrong, "items"))
        ck_assert_msg(strcmp(farm_text(item, "family"), "odd") == 0, "%s is wrong: %s",
                      farm_text(item, "name"), farm_text(item, "reason"));
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    ck_assert_str_eq(farm_text(task, "state"), "done");
}

/* When it is imported, attacks all processes whose command line names the farm's folder, except runners and
 * their supervisors: in a PID namespace, the runner has the pid of its supervisor. */
#define ATTACKS                                                                                          \
    "import os, resource, sys\n"                                                                         \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n"                                                 \
    "from family_plain import family\n"                                                                  \
    "for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n"                                   \
    "    try: name, line = (open('/proc/%d/%s' % (pid, f), 'rb').read() for f in ('comm', 'cmdline'))\n" \
    "    except OSError: continue\n"                                                                     \
    "    if b'@' not in line or b'boot.py' in line or b'superv' in name: continue\n"                     \
    "    for attack in (lambda: os.sched_setaffinity(pid, [min(os.sched_getaffinity(0))]),\n"            \
    "                   lambda: os.setpriority(os.PRIO_PROCESS, pid, 7),\n"                              \
    "                   lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),\n"         \
    "                   lambda: os.kill(pid, 9),\n"                                                      \
    "                   lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))):\n"                  \
    "        try: attack(); print('attack on', pid, 'succeeded', file=sys.stderr)\n"                     \
    "        except OSError: pass\n"

static void expect_untouched(pid_t pid)
{
    struct rlimit limit;
    cpu_set_t own, set;
    ck_assert_int_eq(kill(pid, 0), 0);
    ck_assert_int_eq(prlimit(pid, RLIMIT_CPU, NULL, &limit), 0);
    ck_assert(limit.rlim_cur == RLIM_INFINITY);
    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    ck_assert_int_eq(sched_getaffinity(pid, sizeof(set), &set), 0);
    ck_assert(CPU_EQUAL(&own, &set));
    ck_assert_int_eq(sched_getscheduler(pid), sched_getscheduler(0));
    ck_assert_int_eq(getpriority(PRIO_PROCESS, (id_t)pid), getpriority(PRIO_PROCESS, 0));
}

/* A family changes neither the worker nor the coordinator, with and without a PID namespace. */
MF_TEST(withstands_attacks_on_processes, .rows = 2)
{
    char file[64];
    farm_start(&farm, 1000);
    write_family(ATTACKS, farm.folder, file);
    start_worker(file, "move,plain_py", _i == 0 ? NULL : "--no-pid-namespace");
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, ANY);
    remove_family(file);
    expect_untouched((pid_t)farm.workers[0]);
    expect_untouched((pid_t)farm.daemon);
    const cJSON *step;
    _cleanup_(cJSON_Deletep) cJSON *steps = step_of(batch, "plain_py", &step);
    ck_assert_str_eq(farm_text(step, "status"), "ok");
}

/* '@' stands for the function `check`, which checks what the sandbox allows and refuses. An unmet expectation
 * raises an exception, which becomes the reason of the step. */
#define CHECKS                                                                        \
    "import multiprocessing, os, shutil, socket\n"                                    \
    "import subprocess, sys, tempfile\n" IMPORT_PLAIN "def square(n): return n * n\n" \
    "def refused(call):\n"                                                            \
    "    try: call()\n"                                                               \
    "    except OSError: return\n"                                                    \
    "    raise RuntimeError('the sandbox allows it')\n"                               \
    "@"                                                                               \
    "class Checks(p.Plain):\n"                                                        \
    "    name = 'odd'\n"                                                              \
    "    def open(self, candidate, shape):\n"                                         \
    "        check()\n"                                                               \
    "        return super().open(candidate, shape)\n"                                 \
    "family = Checks()\n"

static int tune_with_check(const char *check)
{
    char file[64];
    write_family(CHECKS, check, file);
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL, ANY "&time_cap_ms=60000");
    remove_family(file);
    return batch;
}

MF_TEST(limits_what_families_do)
{
    int batch = tune_with_check(
        "def check():\n"
        "    assert os.environ['HOME'] == os.environ['TMPDIR'] == tempfile.gettempdir()\n"
        "    with tempfile.TemporaryFile() as f: f.write(b'x')\n"
        "    assert subprocess.run([sys.executable, '-c', 'pass']).returncode == 0\n"
        "    for ldconfig in ['/sbin/ldconfig', '-p'], ['/bin/sh', '-c', '/sbin/ldconfig -p']:\n"
        "        subprocess.run(ldconfig, stdout=subprocess.DEVNULL, check=True)\n"
        "    multiprocessing.Lock()\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        assert pool.map(square, [1, 2]) == [1, 4]\n"
        "    refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))\n"
        "    refused(lambda: subprocess.run(['/bin/ls'], stdout=subprocess.DEVNULL))\n"
        "    refused(lambda: open(__file__, 'a'))\n"
        "    refused(lambda: open('/etc/shadow'))\n");
    expect_step(batch, "ok", "");
}

/* A compiler that PATH finds in a folder of its own may run, with its own programs. The sandbox refuses other
 * programs and files of that folder. */
MF_TEST(runs_the_compilers_of_path)
{
    char folder[] = "/tmp/check_python.XXXXXX", text[1024];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(
        text, sizeof(text),
        "cd %s && mkdir -p bin libexec/gcc/x/1 && cp /bin/true bin/gcc && cp /bin/true bin/other && "
        "cp /bin/true libexec/gcc/x/1/cc1 && cp /bin/true bin/cc1 && touch secret",
        folder);
    ck_assert_int_eq(system(text), 0);
    (void)snprintf(text, sizeof(text), "%s/bin:%s", folder, getenv("PATH"));
    ck_assert_int_eq(setenv("PATH", text, 1), 0);
    int batch =
        tune_with_check("def check():\n"
                        "    gcc = shutil.which('gcc')\n"
                        "    folder = os.path.dirname(os.path.dirname(gcc))\n"
                        "    assert folder.startswith('/tmp/check_python.'), gcc\n"
                        "    for program in (gcc, f'{folder}/libexec/gcc/x/1/cc1', f'{folder}/bin/cc1'):\n"
                        "        subprocess.run([program], check=True)\n"
                        "    refused(lambda: subprocess.run([f'{folder}/bin/other']))\n"
                        "    refused(lambda: open(f'{folder}/secret'))\n");
    (void)snprintf(text, sizeof(text), "rm -r %s", folder);
    ck_assert_int_eq(system(text), 0);
    expect_step(batch, "ok", "");
}

/* Copies the revision of a family of a worker with this file. */
static void revision_of(const char *file, const char *family, char ret[80])
{
    start_farm(file, "move,odd");
    _cleanup_(cJSON_Deletep) cJSON *workers = farm_get(&farm, "/api/v1/workers");
    const cJSON *worker = cJSON_GetArrayItem(mf_json_array(workers, "items"), 0);
    (void)snprintf(ret, 80, "%s", farm_text(mf_json_object(worker, "families"), family));
    farm_stop(&farm);
}

/* The source of a family and its revision() decide its revision, and do not change that of other families. */
MF_TEST(revisions_are_of_families)
{
    static const char *const versions[] = {"return '1.0'", "return '1.1'", "return '1.1' # the same"};
    char file[64], odd[3][80], move[80];
    for (size_t i = 0; i < MF_ARRAY_LEN(versions); i++) {
        char code[64];
        (void)snprintf(code, sizeof(code), "def revision(self): %s", versions[i]);
        write_family(BROKEN, code, file);
        revision_of(file, "odd", odd[i]);
        remove_family(file);
    }
    write_family(BROKEN, "pass", file);
    revision_of(file, "move", move);
    remove_family(file);
    ck_assert_str_ne(odd[0], odd[1]);
    ck_assert_str_ne(odd[1], odd[2]);
    ck_assert_ptr_null(strchr(move, '-')); /* the build's own */
    ck_assert_ptr_nonnull(strchr(odd[0], '-'));
}

/* A module with a class Odd, whose objects have this name. */
#define NAMED(name) "import sys\n" IMPORT_PLAIN "class Odd(p.Plain): name = '" name "'\n"

/* clang-format off */
static const struct {
    const char *code, *name, *why; /* name and reason that the worker reports */
} bad_modules[] = {
    {"import no_such_module\n",              "odd", "ModuleNotFoundError: No module named 'no_such_module'"},
    {"import os; os.kill(os.getpid(), 11)\n", "odd", "the import crashed with signal 11"},
    {"import sys; sys.exit(3)\n",            "odd", "SystemExit: 3 (odd.py:1)"},
    {"family = 1\n",                         "odd", "the module has neither a variable `family`"},
    {NAMED("a b") "family = Odd()\n", "python", "the name 'a b' of the family must be 1 to"},
    {NAMED("odd") "families = [Odd(), Odd()]\n", "odd",
     "this runner already has a family odd"},
    {NAMED("n") "families = [p.Plain()] + [Odd() for i in range(16)]\n"
     "for i, f in enumerate(families[1:]): f.name = 'n%d' % i\n", "n15",
     "a runner has at most 16 Python families"},
};
/* clang-format on */

static void expect_refusal(const char *name, const char *why)
{
    _cleanup_(cJSON_Deletep) cJSON *workers = farm_get(&farm, "/api/v1/workers");
    const cJSON *refused =
        mf_json_array(cJSON_GetArrayItem(mf_json_array(workers, "items"), 0), "refused_families");
    const cJSON *first = cJSON_GetArrayItem(refused, 0);
    ck_assert_ptr_nonnull(first);
    ck_assert_str_eq(farm_text(first, "name"), name);
    ck_assert_msg(strstr(farm_text(first, "why"), why) != NULL, "%s", farm_text(first, "why"));
}

/* A family that cannot be loaded is reported and does not affect other families. */
MF_TEST(serves_other_families, .rows = MF_ARRAY_LEN(bad_modules))
{
    char file[64];
    write_family("@", bad_modules[_i].code, file);
    farm_start(&farm, 1000);
    const char *const args[] = {"--device",    "cpu:0", "--families",  "move,plain_py", "--python", PYTHON,
                                "--family-py", file,    "--family-py", PLAIN,           NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    expect_refusal(bad_modules[_i].name, bad_modules[_i].why);
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, ANY);
    remove_family(file);
    const cJSON *step;
    _cleanup_(cJSON_Deletep) cJSON *steps = step_of(batch, "plain_py", &step);
    ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s", farm_text(step, "reason"));
}

/* A shared object cannot add a second family of the same name. */
MF_TEST(refuses_a_shared_object_of_the_same_name)
{
    char file[64];
    write_family("@", NAMED("plain") "family = Odd()\n", file);
    farm_start(&farm, 1000);
    const char *const args[] = {"--device",    "cpu:0", "--families",  "move,plain",
                                "--python",    PYTHON,  "--family-py", PLAIN,
                                "--family-py", file,    "--family-so", MF_BINARY_DIR "/tests/plain.so",
                                NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    expect_refusal("plain", "a Python family of this runner has the same name");
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, ANY);
    remove_family(file);
    const cJSON *step;
    _cleanup_(cJSON_Deletep) cJSON *steps = step_of(batch, "plain", &step);
    ck_assert_str_eq(farm_text(step, "name"), "py_layer");
    ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s", farm_text(step, "reason"));
}

/* clang-format off */
static const struct {
    const char *file, *launch; /* launch: code for the family FLAWED, if file is NULL */
    int code;
    const char *lines[3];
} self_checks[] = {
    {PLAIN, NULL, 0,
     {"bf16            plain_py: 1 of 1 candidates work", "family        plain_py, revision ",
      "result        ok: "}},
    {"/nowhere.py", NULL, 1,
     {"FAILED        family nowhere cannot be loaded: FileNotFoundError", "bf16            move: ",
      "result        FAILED: "}},
    {NULL, "os.kill(os.getpid(), 11)", 1,
     {"FAILED          py_layer: crash: ", "signal 11", "int4 weights    two_stage_int4: "}},
    {NULL, "out[5] = 0x7fc0", 1,
     {"FAILED          py_layer: wrong: ", "bf16            odd: 0 of 1 candidates work",
      "result        FAILED: "}},
};
/* clang-format on */

/* Runs a command and returns its exit code and output. */
static int run(const char *command, char *out, size_t cap)
{
    FILE *report = popen(command, "r");
    ck_assert_ptr_nonnull(report);
    size_t n = fread(out, 1, cap - 1, report);
    out[n] = '\0';
    return WEXITSTATUS(pclose(report));
}

/* A family of the name vllm, whose default is much slower than its configuration. */
#define VLLM                                                                          \
    "import sys, time\n" IMPORT_PLAIN "class Slow(p.PlainLayer):\n"                   \
    "    def launch(self, tensors, stream):\n"                                        \
    "        time.sleep(0.1)\n"                                                       \
    "        super().launch(tensors, stream)\n"                                       \
    "class Vllm(p.Plain):\n"                                                          \
    "    name = 'vllm'\n"                                                             \
    "    def enumerate(self, shape, device):\n"                                       \
    "        yield shape.candidate('" CONFIG "')\n"                                   \
    "        yield shape.candidate('default')\n"                                      \
    "    def open(self, candidate, shape):\n"                                         \
    "        return (Slow if candidate.name == 'default' else p.PlainLayer)(shape)\n" \
    "    def revision(self): return 'vllm 0.33.0 triton 3.6.0 torch 2.11.0'\n"        \
    "family = Vllm()\n"
#define CONFIG "triton_m16_n64_k64_g1_w4_s3"

/* A consumer's own choice is never dropped as slow, and races against the best configuration. */
MF_TEST(default_races)
{
    char file[64];
    write_family("@", VLLM, file);
    int batch = tune(file, "move,vllm", FARM_CSV_HEAD FARM_CSV_SMALL, "&consumer=vllm");
    remove_family(file);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=vllm&status=ok");
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(steps, "items")), 2);
    _cleanup_(cJSON_Deletep) cJSON *race = farm_get(&farm, "/api/v1/tasks/1/race?consumer=vllm");
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(race, "pipelines")), 2);
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    const cJSON *winner = cJSON_GetObjectItem(farm_consumer(task, "vllm"), "winner");
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetArrayItem(winner, 0)), "vllm:" CONFIG);
}

/* moefarm tune passes its options to the workers of its own farm, and writes the files of each consumer. */
MF_TEST(moefarm_tune_runs_families)
{
    char folder[] = "/tmp/check_python.XXXXXX", command[1024], out[16384], file[64];
    write_family("@", VLLM, file);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(command, sizeof(command),
                   "cd %s && printf '" FARM_CSV_HEAD FARM_CSV_SMALL
                   "' > in.csv && %s tune -i in.csv -o out.csv --consumer moefarm,vllm "
                   "--device cpu:0 --families move,one_stage,vllm --python %s --family-py %s,%s 2>&1 && "
                   "cat out.csv out.csv.vllm/E=4,N=*.json",
                   folder, MF_BINARY_DIR "/cli/moefarm", PYTHON, PLAIN, file);
    int code = run(command, out, sizeof(out));
    remove_family(file);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    static const char *const wanted[] = {",one_stage:", "\"BLOCK_SIZE_M\": 16",
                                         "\"triton_version\": \"3.6.0\""}; /* from revision() */
    for (size_t i = 0; i < MF_ARRAY_LEN(wanted); i++)
        ck_assert_msg(code == 0 && strstr(out, wanted[i]), "no '%s' in: %s", wanted[i], out);
}

/* The report of --self-check names what does not work and goes on with the other candidates. */
MF_TEST(self_check_reports, .rows = MF_ARRAY_LEN(self_checks))
{
    char file[64], command[512], out[16384];
    (void)snprintf(file, sizeof(file), "%s", PLAIN);
    if (!self_checks[_i].file)
        write_family(FLAWED, self_checks[_i].launch, file);
    (void)snprintf(
        command, sizeof(command), "%s --self-check --device cpu:0 --python %s --family-py %s %s 2>&1",
        MF_BINARY_DIR "/worker/moefarm-worker", PYTHON, self_checks[_i].file ? self_checks[_i].file : file,
        self_checks[_i].file ? "" : "--family-py " PLAIN);
    int code = run(command, out, sizeof(out));
    if (!self_checks[_i].file)
        remove_family(file);
    ck_assert_msg(code == self_checks[_i].code, "%s", out);
    for (size_t i = 0; i < MF_ARRAY_LEN(self_checks[_i].lines); i++)
        ck_assert_msg(strstr(out, self_checks[_i].lines[i]) != NULL, "no '%s' in: %s",
                      self_checks[_i].lines[i], out);
}

/* Compiling before the step begins does not count against the step's time limit. */
MF_TEST(precompiles_without_a_limit)
{
    char file[64];
    write_family("import sys, time\n" IMPORT_PLAIN "class Odd(p.Plain):\n"
                 "    name = 'odd'\n"
                 "    compiled = []\n"
                 "    def precompile(self, candidates, shape):\n"
                 "        time.sleep(@)\n"
                 "        self.compiled += [c.name for c in candidates]\n"
                 "        yield\n"
                 "    def open(self, candidate, shape):\n"
                 "        assert candidate.name in self.compiled, 'not compiled'\n"
                 "        return super().open(candidate, shape)\n"
                 "family = Odd()\n",
                 "3", file);
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL, ANY "&time_cap_ms=2000");
    remove_family(file);
    expect_step(batch, "ok", "");
}

/* A runner that dies while it compiles ahead does not end the unit: the next runner does not compile ahead,
 * so that the steps' own time limits apply. */
MF_TEST(survives_a_crash_while_compiling)
{
    char file[64];
    write_family("import os, sys\n" IMPORT_PLAIN "class Odd(p.Plain):\n"
                 "    name = 'odd'\n"
                 "    def precompile(self, candidates, shape):\n"
                 "        @\n"
                 "family = Odd()\n",
                 "os.kill(os.getpid(), 11)", file);
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL, ANY "&time_cap_ms=30000");
    remove_family(file);
    expect_step(batch, "ok", "");
    expect_moves(batch);
}

/* A silent enumeration ends after 30 s. */
MF_TEST(ends_a_silent_enumeration)
{
    char file[64];
    write_family(BROKEN, "def enumerate(self, shape, device): time.sleep(1000)", file);
    int batch = tune(file, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL, ANY);
    remove_family(file);
    expect_rejection(batch, "odd", "enumerate was silent for too long");
    expect_moves(batch);
}

int main(void)
{
    if (system(PYTHON " -c 'import ctypes' 2>/dev/null") != 0) {
        (void)puts("skipped: " PYTHON " with ctypes is missing (Debian: python3)");
        return MF_CHECK_SKIPPED;
    }
    return mf_check_main(&(struct mf_test_group){.timeout_s = 180, .teardown = stop_farm});
}
