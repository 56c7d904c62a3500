/* Tests that the farm runs a winner's row of AITER's table through the framework's own operator (open_row of
 * the Python family) before it times the winner again. A winner whose row misbehaves leaves the race. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/text_file.h"

#define PYTHON "/usr/bin/python3"
#define PLAIN  MF_SOURCE_DIR "/examples/family_plain.py"
/* '@' stands for the code that opens the row. */
#define FAMILY                                                                                       \
    "import os, signal, sys\n"                                                                       \
    "sys.path.insert(0, '" MF_SOURCE_DIR "/examples')\n"                                             \
    "import family_plain as p\n"                                                                     \
    "class Wrong(p.PlainLayer):\n"                                                                   \
    "    def launch(self, tensors, stream):\n"                                                       \
    "        super().launch(tensors, stream)\n"                                                      \
    "        tensors['y'].memory()[0] ^= 0x8000\n"                                                   \
    "class Odd(p.Plain):\n"                                                                          \
    "    name = 'odd'\n"                                                                             \
    "    def enumerate(self, shape, device):\n"                                                      \
    "        yield shape.candidate('kernel_sk4', aiter=True, block_m=16, ksplit=4)\n"                \
    "    def open_row(self, row, shape):\n"                                                          \
    "        names = [row[c] for c in ('kernelName1', 'block_m', 'ksplit', 'run_1stage', 'flat')]\n" \
    "        assert names == ['kernel', 16, 4, 1, 2], names\n"                                       \
    "        @\n"                                                                                    \
    "        return p.PlainLayer(shape)\n"                                                           \
    "family = Odd()\n"

static struct farm farm;

static void stop_farm(void)
{
    farm_stop(&farm);
}

static void tune(const char *code)
{
    char text[4096];
    const char *at = strchr(FAMILY, '@');
    farm_start(&farm, 1000);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - FAMILY), FAMILY, code, at + 1);
    const char *const args[] = {
        "--device", "cpu:0",       "--families", "move,odd",    "--python",
        PYTHON,     "--family-py", PLAIN,        "--family-py", farm_file(&farm, "odd.py", text),
        NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    int batch = farm_submit(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, "&consumer=aiter&time_cap_ms=30000");
    farm_wait_done(&farm, batch);
}

/* clang-format off */
static const struct {
    const char *code, *state, *reason; /* reason: of the task */
} cases[] = {
    {"pass", "done", ""},
    {"raise ValueError('fused_moe chose another kernel for ' + row['token'])", "failed",
     "is unsupported: the tuned row, through odd's own operator: cannot open odd:row_1 for this shape: "
     "ValueError: fused_moe chose another kernel for 2"},
    {"return Wrong(shape)", "failed", "is wrong: the tuned row, through odd's own operator: "},
    {"os.kill(os.getpid(), signal.SIGSEGV)", "failed", "is crash: "},
};
/* clang-format on */

MF_TEST(checks_the_row_of_a_winner, .rows = MF_ARRAY_LEN(cases))
{
    tune(cases[_i].code);
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    ck_assert_str_eq(farm_text(task, "state"), cases[_i].state);
    ck_assert_msg(strstr(farm_text(task, "reason"), cases[_i].reason) != NULL, "%s",
                  farm_text(task, "reason"));
    _cleanup_(mf_freep) char *table = farm_export_query(&farm, "&consumer=aiter");
    ck_assert_msg((strstr(table, ",kernel,") != NULL) == (strcmp(cases[_i].state, "done") == 0), "%s", table);
}

int main(void)
{
    if (system(PYTHON " -c 'import ctypes' 2>/dev/null") != 0) {
        (void)puts("skipped: " PYTHON " with ctypes is missing (Debian: python3)");
        return MF_CHECK_SKIPPED;
    }
    return mf_check_main(&(struct mf_test_group){.timeout_s = 180, .teardown = stop_farm});
}
