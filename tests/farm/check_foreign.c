/* Tests foreign runners. examples/python_runner.py offers a step, which the farm verifies and times, and
 * which wins a row. Other runners in this file misbehave. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#define LARGE \
    "4,1024,512,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
#define PYTHON "python3 " MF_SOURCE_DIR "/examples/python_runner.py"

static struct farm farm;

static void stop_farm(void)
{
    farm_stop(&farm);
}

/* Starts a farm with one CPU worker. The given families must not offer GEMMs, so that only the foreign runner
 * offers them. */
static void start_worker(const char *command, const char *families, const char *option)
{
    const char *const args[] = {"--device", "cpu:0", "--families", families,
                                "--runner", command, option,       NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
}

static void start_farm(const char *command, const char *families)
{
    farm_start(&farm, 1000);
    start_worker(command, families, NULL);
}

static int tune(const char *command, const char *families, const char *csv, const char *query)
{
    start_farm(command, families);
    int batch = farm_run(&farm, csv, query);
    return batch;
}

/* Writes the template with its '@' replaced by `run` to a file; returns the file and the command that runs
 * it. */
static void write_program(const char *before, const char *run, char file[64], char command[96])
{
    char text[4096];
    (void)snprintf(file, 64, "/tmp/check_foreign.XXXXXX");
    int fd = mkstemp(file);
    ck_assert_int_ge(fd, 0);
    const char *at = strchr(before, '@');
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - before), before, run, at + 1);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    (void)snprintf(command, 96, "python3 %s", file);
}

MF_TEST(wins_a_row)
{
    int batch = tune(PYTHON, "move,python", FARM_CSV_HEAD FARM_CSV_SMALL, "");
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=python");
    const cJSON *step = cJSON_GetArrayItem(mf_json_array(steps, "items"), 0);
    ck_assert_str_eq(farm_text(step, "name"), "py_layer");
    ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s", farm_text(step, "reason"));
    ck_assert_int_eq(farm_number(step, "verified"), 2); /* passed all gates */
    ck_assert_int_ge(farm_number(step, "n"), 3);
    ck_assert_double_gt(cJSON_GetObjectItem(step, "us")->valuedouble, 10);
    /* equals the reference output up to rounding to bf16 */
    ck_assert_double_le(cJSON_GetObjectItem(step, "row_err")->valuedouble, 0.01);
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    const char *row = strchr(table, '\n');
    ck_assert_ptr_nonnull(row);
    ck_assert_msg(strstr(row, ",python:py_layer,") != NULL, "%s", table);
}

#define SLOW_LOADS                                       \
    "import sys, time\n"                                 \
    "sys.dont_write_bytecode = True\n"                   \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n" \
    "import python_runner as p\n"                        \
    "right = p.load\n"                                   \
    "def load(m):\n"                                     \
    "    time.sleep(@)\n"                                \
    "    return right(m)\n"                              \
    "p.load = load\n"                                    \
    "p.main()\n"

/* The measured time begins with `run` and ends with `ran`, so it does not include loading the buffers. */
MF_TEST(does_not_time_loads)
{
    char file[64], command[96];
    write_program(SLOW_LOADS, "0.2", file, command);
    int batch = tune(command, "move,python", FARM_CSV_HEAD FARM_CSV_SMALL, "&time_cap_ms=30000");
    (void)unlink(file);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=python");
    const cJSON *step = cJSON_GetArrayItem(mf_json_array(steps, "items"), 0);
    ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s", farm_text(step, "reason"));
    ck_assert_double_lt(cJSON_GetObjectItem(step, "us")->valuedouble, 200e3);
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
    {FORM_HEAD SMALL ",ep:0/64\n", "without a form, not 'ep:0/64'"},
};

MF_TEST(rejects_with_a_reason, .rows = MF_ARRAY_LEN(rejected_shapes))
{
    int batch = tune(PYTHON, "move,python", rejected_shapes[_i].csv, "");
    _cleanup_(cJSON_Deletep) cJSON *why = farm_task_list(&farm, batch, "rejections");
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=python");
    const cJSON *item;
    bool found = false;
    cJSON_ArrayForEach (item, mf_json_array(why, "items")) {
        if (strcmp(farm_text(item, "family"), "python") == 0)
            found |= strstr(farm_text(item, "reason"), rejected_shapes[_i].message) != NULL;
    }
    ck_assert(found);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(steps, "items")), 0);
}

/* A minimal foreign runner. RUN is the code that it executes to run a step. */
#define PROGRAM(RUN)                                                                                      \
    "import json, os, socket, sys, time\n"                                                                \
    "peer = socket.socket(fileno=int(os.environ['MOEFARM_RUNNER_FD']))\n"                                 \
    "def say(**m): peer.sendall((json.dumps(m) + '\\n').encode())\n"                                      \
    "say(op='hello', protocol=1, name='odd', revision='1', families=['odd'], can=['step'])\n"             \
    "for line in peer.makefile('r'):\n"                                                                   \
    "    m = json.loads(line)\n"                                                                          \
    "    if m['op'] == 'enumerate':\n"                                                                    \
    "        say(op='step', step=dict(name='odd_layer', family='odd', stage='one', block_m=0, ksplit=0, " \
    "workspace=0,\n"                                                                                      \
    "            covers='sort+gather+gemm1+act+gemm2+weight+combine', needs=['x/bf16/none/token',\n"      \
    "            'topk/index/none/token', 'w1/bf16/none/row', 'w2/bf16/none/row'], "                      \
    "gives=['y/bf16/none/token'],\n"                                                                      \
    "            flops=1, bytes=0, reorder_tolerance=0))\n"                                               \
    "        say(op='enumerated')\n"                                                                      \
    "    elif m['op'] == 'load': say(op='loaded', handle=m['handle'])\n"                                  \
    "    elif m['op'] == 'unload': say(op='unloaded', handle=m['handle'])\n"                              \
    "    elif m['op'] == 'stop': break\n"                                                                 \
    "    elif m['op'] == 'run':\n"                                                                        \
    "        " RUN "\n"

/* clang-format off */
static const struct {
    const char *run, *status, *message;
} bad_programs[] = {
    {"os._exit(7)", "crash", "exit code 7"},
    {"os.kill(os.getpid(), 11)", "crash", "signal 11"},
    {"sys.stderr.write('no such kernel\\n'); sys.stderr.flush(); os._exit(1)", "crash", "no such kernel"},
    {"time.sleep(1000)", "hang", "silent for more than"},
    {"say(op='ran', handle=m['handle'])", "wrong", ""},                      /* writes no output */
    {"say(op='failed', handle=m['handle'], status='no_memory', reason='too large for me')", "no_memory", ""},
    {"peer.sendall(b'what?\\n')", "crash", "sent an invalid message"},
};
/* clang-format on */

MF_TEST(reports_bad_programs, .rows = MF_ARRAY_LEN(bad_programs))
{
    char file[64], command[96];
    write_program(PROGRAM("@"), bad_programs[_i].run, file, command);
    /* only a hang may exceed the time cap; a long time cap allows for a busy machine */
    int batch =
        tune(command, "move,odd", FARM_CSV_HEAD FARM_CSV_SMALL,
             strcmp(bad_programs[_i].status, "hang") == 0 ? "&time_cap_ms=1000" : "&time_cap_ms=30000");
    (void)unlink(file);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=odd");
    const cJSON *step = cJSON_GetArrayItem(mf_json_array(steps, "items"), 0);
    const char *status = farm_text(step, "status"), *reason = farm_text(step, "reason");
    /* if the step crashed two runners, its status is quarantined and its reason names the crash */
    bool quarantined =
        strcmp(status, "quarantined") == 0 && strcmp(bad_programs[_i].status, "no_memory") != 0;
    ck_assert_msg(quarantined || strcmp(status, bad_programs[_i].status) == 0, "%s: %s", status, reason);
    ck_assert_msg(strstr(reason, bad_programs[_i].message) != NULL, "%s: %s", status, reason);
    /* the other steps of the unit continue */
    _cleanup_(cJSON_Deletep) cJSON *moves = farm_task_list(&farm, batch, "steps?family=move&status=ok");
    ck_assert_int_ge(cJSON_GetArraySize(mf_json_array(moves, "items")), 1);
}

/* The example runner with a flaw in place of '@'. With one flaw, one output in 64 is slightly beyond the
 * mismatch tolerance; with the other, each run takes 0.2 s. Batch options decide whether the step passes. */
#define FLAWED                                           \
    "import sys, time\n"                                 \
    "sys.dont_write_bytecode = True\n"                   \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n" \
    "import python_runner as p\n"                        \
    "right = p.layer\n"                                  \
    "def layer(s, x, ids, weights, w1, w2, y):\n"        \
    "    right(s, x, ids, weights, w1, w2, y)\n"         \
    "    @\n"                                            \
    "p.layer = layer\n"                                  \
    "p.main()\n"

/* clang-format off */
static const struct {
    const char *what, *flaw;
    const char *lenient, *strict; /* batch options with which the step passes, and with which it fails */
    const char *status, *message;    /* status and reason of the step with the strict options */
} flaws[] = {
    {"err_ratio",
     "for i in range(0, len(y), 64): "
     "y[i] = p.bfloat16([v + (0.012 + 0.02 * abs(v)) for v in p.floats(y[i:i + 1])])[0]",
     "&err_ratio=0.1", "&err_ratio=0.01", "wrong", "mismatch: "},
    {"time_cap_ms", "time.sleep(0.2)", "&time_cap_ms=30000", "&time_cap_ms=100", "hang",
     "silent for more than 100 ms"},
};
/* clang-format on */

/* The same step passes in the lenient batch and fails in the strict batch. */
MF_TEST(applies_batch_options, .rows = MF_ARRAY_LEN(flaws))
{
    char file[64], command[96];
    write_program(FLAWED, flaws[_i].flaw, file, command);
    start_farm(command, "move,python");
    for (int strict = 0; strict < 2; strict++) {
        int batch =
            farm_submit(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, strict ? flaws[_i].strict : flaws[_i].lenient);
        farm_wait_done(&farm, batch);
        _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=python");
        const cJSON *step = cJSON_GetArrayItem(mf_json_array(steps, "items"), 0);
        const char *status = farm_text(step, "status"), *reason = farm_text(step, "reason");
        /* if the step hung twice, its status is quarantined and its reason names the hang */
        bool as_expected =
            strcmp(status, strict ? flaws[_i].status : "ok") == 0 ||
            (strict && strcmp(flaws[_i].status, "hang") == 0 && strcmp(status, "quarantined") == 0);
        ck_assert_msg(as_expected, "%s, strict %d: %s: %s", flaws[_i].what, strict, status, reason);
        if (strict)
            ck_assert_msg(strstr(reason, flaws[_i].message) != NULL, "%s: %s", flaws[_i].what, reason);
    }
    (void)unlink(file);
}

/* The example runner, which also tries to overwrite its inputs through every way to their files. */
#define OVERWRITES                                                                                   \
    "import mmap, os, sys\n"                                                                         \
    "sys.dont_write_bytecode = True\n"                                                               \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n"                                             \
    "import python_runner as p\n"                                                                    \
    "right = p.load\n"                                                                               \
    "def write_mapped(fd, data, at):\n"                                                              \
    "    start = at % 4096\n"                                                                        \
    "    with mmap.mmap(fd, start + len(data), mmap.MAP_SHARED, offset=at - start) as window:\n"     \
    "        window[start:] = data\n"                                                                \
    "def load(m):\n"                                                                                 \
    "    loaded = right(m)\n"                                                                        \
    "    for part in (part for b in m['buffers'] if b['side'] == 'needs' for part in b['parts']):\n" \
    "        for write in (os.pwrite, write_mapped):\n"                                              \
    "            try: write(os.open(part['path'], os.O_RDWR), @ * part['bytes'], part['offset'])\n"  \
    "            except OSError: pass\n"                                                             \
    "    return loaded\n"                                                                            \
    "p.load = load\n"                                                                                \
    "p.main()\n"

/* No candidate is wrong because a foreign runner writes to the inputs that all candidates share. */
MF_TEST(cannot_write_to_inputs)
{
    char file[64], command[96];
    farm_start(&farm, 1000);
    write_program(OVERWRITES, "b'A'", file, command);
    start_worker(command, "move,one,python", NULL);
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, "");
    (void)unlink(file);
    _cleanup_(cJSON_Deletep) cJSON *wrong = farm_task_list(&farm, batch, "steps?status=wrong");
    const cJSON *first = cJSON_GetArrayItem(mf_json_array(wrong, "items"), 0);
    ck_assert_msg(!first, "%d wrong steps, first: %s", cJSON_GetArraySize(mf_json_array(wrong, "items")),
                  farm_text(first, "reason"));
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    ck_assert_str_eq(farm_text(task, "state"), "done");
}

/* The example runner, which first attacks all processes whose command line names the farm's folder, except
 * runners and their supervisors: in a PID namespace, the runner has the pid of its supervisor. */
#define ATTACKS                                                                                          \
    "import os, resource, sys\n"                                                                         \
    "sys.dont_write_bytecode = True\n"                                                                   \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n"                                                 \
    "import python_runner as p\n"                                                                        \
    "for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n"                                   \
    "    try: name, line = (open('/proc/%d/%s' % (pid, f), 'rb').read() for f in ('comm', 'cmdline'))\n" \
    "    except OSError: continue\n"                                                                     \
    "    if b'@' not in line or b'--runner-child' in line or b'superv' in name: continue\n"              \
    "    for attack in (lambda: os.sched_setaffinity(pid, [min(os.sched_getaffinity(0))]),\n"            \
    "                   lambda: os.setpriority(os.PRIO_PROCESS, pid, 7),\n"                              \
    "                   lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),\n"         \
    "                   lambda: os.kill(pid, 9),\n"                                                      \
    "                   lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))):\n"                  \
    "        try: attack(); print('attack on', pid, 'succeeded', file=sys.stderr)\n"                     \
    "        except OSError: pass\n"                                                                     \
    "p.main()\n"

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

/* A foreign runner changes neither the worker nor the coordinator, with and without a PID namespace. */
MF_TEST(withstands_attacks_on_processes, .rows = 2)
{
    char file[64], command[96];
    farm_start(&farm, 1000);
    write_program(ATTACKS, farm.folder, file, command);
    start_worker(command, "move,python", _i == 0 ? NULL : "--no-pid-namespace");
    int batch = farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, "");
    (void)unlink(file);
    expect_untouched((pid_t)farm.workers[0]);
    expect_untouched((pid_t)farm.daemon);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=python");
    ck_assert_str_eq(farm_text(cJSON_GetArrayItem(mf_json_array(steps, "items"), 0), "status"), "ok");
}

int main(void)
{
    if (access("/usr/bin/python3", X_OK) != 0) {
        (void)puts("skipped: python3 is missing");
        return MF_CHECK_SKIPPED;
    }
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop_farm});
}
