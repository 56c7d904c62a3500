/* Tests releases with real processes, from a batch to a file on a host: freeze, stage, approve, pull and roll
 * back. Also kills the coordinator while it approves a release. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/text.h"
#include "support/farm/farm_harness.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"
#include "support/run_program.h"

#define CLASS   "gfx942/304"
#define BEAT_MS 300
/* The batches use a given layout, because otherwise the farm could choose another layout once there are more
 * token counts, and the first row would change. */
#define WHERE "&classes=" CLASS "&layout=w1%3Dpanel16%20w2%3Dpanel16"

static struct farm farm;
static char url[64], table[128];

static void start(void)
{
    static const char *const args[] = {"--device", "sim:" CLASS ":0", NULL};
    farm_start(&farm, BEAT_MS);
    farm_start_worker(&farm, 0, args);
    (void)farm_run(&farm, FARM_CSV_HEAD FARM_CSV_ROW(16), WHERE);
    (void)farm_run(&farm, FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64), WHERE);
    farm_kill_worker(&farm, 0);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", farm.http);
    (void)snprintf(table, sizeof(table), "%s/tuned_fmoe.csv", farm.folder);
    ck_assert_int_eq(setenv("MOEFARM_URL", url, 1), 0);
}

static void stop(void)
{
    farm_stop(&farm);
}

static struct ran moefarm(const char *const *words, int code)
{
    static const char *const program[] = {MF_BINARY_DIR "/cli/moefarm", NULL};
    struct ran r = run_program(program, words);
    ck_assert_msg(r.code == code, "moefarm %s %s: exit code %d, expected %d: %s", words[0], words[1], r.code,
                  code, r.text);
    return r;
}
#define RUN(code, ...) moefarm((const char *const[]){__VA_ARGS__, NULL}, code)

static char *read_table(void)
{
    static char text[1 << 16];
    FILE *f = fopen(table, "re");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    (void)fclose(f);
    return text;
}

/* Returns the id of the release whose contents equal the file, or 0 if there is no such release. */
static int released(void)
{
    char hash[MF_SHA256_TEXT_MAX];
    const char *text = read_table();
    mf_sha256_print(text, strlen(text), hash);
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/releases?sha256=%s", hash);
    const cJSON *release = cJSON_GetArrayItem(mf_json_array(list, "items"), 0);
    return release ? farm_number(release, "id") : 0;
}

MF_TEST(releases_and_rolls_back)
{
    start();
    assert_says(RUN(0, "release", "freeze", "--name", "one", "--batch", "1", "--simulated"),
                "release 1 one: 1 rows");
    assert_says(RUN(0, "release", "freeze", "--name", "two", "--simulated"), "release 2 two: 2 rows");
    RUN(2, "pull", "stable", "-o", table);
    ck_assert_int_ne(access(table, F_OK), 0);
    RUN(0, "release", "stage", "stable", "one");
    RUN(2, "pull", "stable", "-o", table); /* a staged release is not the current release */
    RUN(2, "release", "approve", "stable", "two");
    assert_says(RUN(0, "release", "approve", "stable", "one"), "release 1 is current");
    assert_says(RUN(10, "pull", "stable", "-o", table, "--exit-code"), "release 1 one of channel stable");
    ck_assert_int_eq(released(), 1);

    struct stat before, after;
    ck_assert_int_eq(stat(table, &before), 0);
    assert_says(RUN(0, "pull", "stable", "-o", table, "--exit-code"), "already");
    ck_assert_int_eq(stat(table, &after), 0);
    /* the server answered 304, so the file was not rewritten */
    ck_assert_uint_eq(before.st_ino, after.st_ino);

    /* A release that was staged by mistake can be unstaged. The history keeps both moves. */
    RUN(0, "release", "stage", "stable", "two");
    assert_says(RUN(0, "release", "unstage", "stable", "--reason", "of the wrong week"),
                "release 1 is current\n");
    RUN(2, "release", "approve", "stable", "two");
    assert_says(RUN(2, "release", "unstage", "stable"), "no staged release");
    assert_says(RUN(2, "release", "unstage", "stable", "one"), "no release is staged");
    assert_says(RUN(0, "release", "history", "stable"), "of the wrong week");

    RUN(0, "release", "stage", "stable", "two", "--reason", "one more bucket");
    RUN(0, "release", "approve", "stable", "two");
    assert_says(RUN(0, "pull", "stable", "-o", table), "1 added, 0 removed, 0 changed, 1 the same");
    ck_assert_int_eq(released(), 2);
    assert_says(RUN(0, "release", "rollback", "stable", "--reason", "too slow"), "release 1 is current");
    assert_says(RUN(0, "pull", "stable", "-o", table), "0 added, 1 removed, 0 changed, 1 the same");
    ck_assert_int_eq(released(), 1);
    struct ran history = RUN(0, "release", "history", "stable");
    assert_says(history, "one more bucket");
    assert_says(history, "too slow");
    assert_says(RUN(0, "release", "show", "two"), "channels: none");
    assert_says(RUN(0, "release", "show", "1"), "stable (current)");

    /* a file with local changes is not overwritten */
    FILE *f = fopen(table, "ae");
    ck_assert_ptr_nonnull(f);
    (void)fputs("gfx942,304,1\n", f);
    (void)fclose(f);
    assert_says(RUN(1, "pull", "stable", "-o", table), "is not a release of this farm");
    ck_assert_int_eq(released(), 0);
    RUN(0, "pull", "stable", "-o", table, "--force");
    ck_assert_int_eq(released(), 1);
}

/* Returns the id of the channel's current release, and checks that pull writes the contents of this release.
 */
static int current(void)
{
    _cleanup_(cJSON_Deletep) cJSON *channel = farm_get(&farm, "/api/v1/channels/stable");
    ck_assert_ptr_nonnull(channel);
    int id = farm_number(mf_json_object(channel, "current"), "id");
    RUN(0, "pull", "stable", "-o", table, "--quiet");
    ck_assert_int_eq(released(), id);
    return id;
}

static int n_moves(void)
{
    _cleanup_(cJSON_Deletep) cJSON *moves = farm_get(&farm, "/api/v1/channels/stable/history");
    return cJSON_GetArraySize(mf_json_array(moves, "items"));
}

static void kill_and_start(void)
{
    farm_kill_daemon(&farm);
    (void)unsetenv("MOEFARM_FAULT");
    farm_start_daemon(&farm, BEAT_MS);
}

MF_TEST(survives_kill_during_approve)
{
    char file[] = "/tmp/moefarm-fault.XXXXXX", value[96];
    _cleanup_(mf_closep) int fd = mkstemp(file);
    ck_assert_int_ge(fd, 0);
    start();
    RUN(0, "release", "freeze", "--name", "one", "--batch", "1", "--simulated");
    RUN(0, "release", "freeze", "--name", "two", "--simulated");
    RUN(0, "release", "stage", "stable", "1");
    RUN(0, "release", "approve", "stable", "1");
    RUN(0, "release", "stage", "stable", "2");
    ck_assert_int_eq(current(), 1);

    /* The coordinator is killed after it has written the move and before it commits the move, so the move has
     * no effect. */
    (void)snprintf(value, sizeof(value), "%s:1:%s", mf_fault_name(MF_FAULT_CHANNEL_MOVED), file);
    ck_assert_int_eq(setenv("MOEFARM_FAULT", value, 1), 0);
    farm_kill_daemon(&farm);
    farm_start_daemon(&farm, BEAT_MS);
    (void)unsetenv("MOEFARM_FAULT");
    RUN(3, "release", "approve", "stable", "2");
    ck_assert_int_eq(farm_wait_end(&farm.daemon), -1);
    (void)unlink(file);
    farm_start_daemon(&farm, BEAT_MS);
    ck_assert_int_eq(current(), 1);
    ck_assert_int_eq(n_moves(), 3);

    /* The coordinator is killed right after the request. The move and its history entry must be either both
     * stored or both missing. Repeating the request completes the move. */
    for (int i = 0; i < 4; i++) {
        static const char request[] = "POST /api/v1/channels/stable/approve?release=2 HTTP/1.1\r\nHost: "
                                      "localhost\r\nContent-Length: 0\r\n\r\n";
        int connection = http_connect(farm.http), moves = n_moves();
        http_sends(connection, request);
        kill_and_start();
        (void)close(connection);
        int got = current();
        ck_assert_msg(got == 1 || got == 2, "release %d is current, expected 1 or 2", got);
        ck_assert_int_eq(n_moves(), moves + (got == 2));
        RUN(0, "release", "approve", "stable", "2");
        ck_assert_int_eq(n_moves(), moves + 1);
        ck_assert_int_eq(current(), 2);
        RUN(0, "release", "rollback", "stable");
        RUN(0, "release", "stage", "stable", "2");
    }
    /* An acknowledged move is durable. */
    RUN(0, "release", "approve", "stable", "2");
    kill_and_start();
    ck_assert_int_eq(current(), 2);
}

/* With access tokens, staging and approving need different roles, and the history records the token names. */
MF_TEST(checks_roles_and_records_names)
{
    static const char *const tokens[] = {"--tokens", NULL};
    char admin[160], alice[160], bob[160], carol[160];
    start();
    (void)snprintf(admin, sizeof(admin), "%s/state/admin.token", farm.folder);
    (void)snprintf(alice, sizeof(alice), "%s/alice.token", farm.folder);
    (void)snprintf(bob, sizeof(bob), "%s/bob.token", farm.folder);
    (void)snprintf(carol, sizeof(carol), "%s/carol.token", farm.folder);
    farm_kill_daemon(&farm);
    farm.more = tokens;
    farm_start_daemon(&farm, BEAT_MS);
    RUN(0, "token", "submit", "alice", "-o", alice, "--token-file", admin);
    RUN(0, "token", "read", "bob", "-o", bob, "--token-file", admin);
    RUN(0, "token", "admin", "carol", "-o", carol, "--token-file", admin);
    RUN(2, "release", "freeze", "--name", "one", "--simulated");
    RUN(2, "release", "freeze", "--name", "one", "--simulated", "--token-file", bob);
    RUN(0, "release", "freeze", "--name", "one", "--simulated", "--token-file", alice);
    RUN(0, "release", "stage", "stable", "one", "--token-file", alice);
    RUN(2, "release", "unstage", "stable", "one", "--token-file", bob);
    RUN(0, "release", "unstage", "stable", "one", "--token-file", alice);
    RUN(0, "release", "stage", "stable", "one", "--token-file", alice);
    assert_says(RUN(2, "release", "approve", "stable", "one", "--token-file", alice),
                "a token of role admin");
    RUN(0, "release", "approve", "stable", "one", "--token-file", carol);
    RUN(0, "pull", "stable", "-o", table, "--token-file", bob);
    assert_says(RUN(0, "release", "show", "one", "--token-file", bob), " by alice");
    struct ran r = RUN(0, "release", "history", "stable", "--token-file", bob);
    const char *approve = strstr(r.text, "approve"), *stage = strstr(r.text, "stage");
    ck_assert_msg(approve && strstr(approve, "carol") && stage && strstr(stage, "alice"), "%s", r.text);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
