/* What keeps moefarmd from starting is said in one line, with what it is about and what to do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "mf_check.h"
#include "remove_tree.h"
#include "run_program.h"

#define DAEMON MF_BINARY_DIR "/server/moefarmd"

static char folder[64], state[96];

static void setup(void)
{
    mf_say(folder, sizeof(folder), "/tmp/check_start.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    mf_say(state, sizeof(state), "%s/state", folder);
}

static void teardown(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

/* One that does start is ended after a while, with another code. */
static struct ran start(const char *const *more)
{
    const char *const program[] = {"timeout", "10",          "env",     DAEMON, "--http", "127.0.0.1:0",
                                   "--hub",   "127.0.0.1:0", "--state", state,  NULL};
    return run_program(program, more);
}

/* ---- its words ---- */

static const char *const words[][3] = {
    {"tokens"}, /* the dashes forgotten: it must not run without tokens */
    {"--tokens", "extra"},
    {"--", "--tokens"},
};

START_TEST(takes_options_only)
{
    char says[64];
    struct ran r = start(words[_i]);
    ck_assert_int_eq(r.code, 2);
    mf_say(says, sizeof(says), "unexpected argument '%s'", words[_i][words[_i][1] ? 1 : 0]);
    assert_says(r, says);
    ck_assert_int_lt(access(state, F_OK), 0); /* nothing was begun */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("start");
    TCase *tc = tcase_create("start");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, takes_options_only, 0, (int)MF_ARRAY_LEN(words));
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
