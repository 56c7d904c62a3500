/* Tests errors that prevent moefarmd from starting. Each error is reported in one line, with the cause and a
 * remedy. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/secret.h"
#include "common/base/text.h"
#include "server/store/schema.h"
#include "server/store/store.h"
#include "server/store/store_private.h"
#include "support/farm/farm_process.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"

#define DAEMON MF_BINARY_DIR "/server/moefarmd"

static char folder[64], state[96];

static void setup(void)
{
    mf_format(folder, sizeof(folder), "/tmp/check_start.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    mf_format(state, sizeof(state), "%s/state", folder);
}

static void teardown(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

/* Starts moefarmd. If moefarmd starts, it is killed after 10 s; its exit code then differs from that of a
 * failed start. */
static struct ran start(const char *const *more)
{
    const char *const program[] = {"timeout", "10",          "env",     DAEMON, "--http", "127.0.0.1:0",
                                   "--hub",   "127.0.0.1:0", "--state", state,  NULL};
    return run_program(program, more);
}

/* ---- arguments ---- */

static const char *const bad_arguments[][3] = {
    {"tokens"}, /* the user forgot the dashes; moefarmd must not run without tokens */
    {"--tokens", "extra"},
    {"--", "--tokens"},
};

MF_TEST(refuses_arguments, .rows = MF_ARRAY_LEN(bad_arguments))
{
    char message[64];
    struct ran r = start(bad_arguments[_i]);
    ck_assert_int_eq(r.code, 2);
    mf_format(message, sizeof(message), "unexpected argument '%s'",
              bad_arguments[_i][bad_arguments[_i][1] ? 1 : 0]);
    assert_says(r, message);
    ck_assert_int_lt(access(state, F_OK), 0); /* no files were created */
}

/* ---- database ---- */

static void write_text(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

static void make_newer(const char *path)
{
    char sql[64];
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    mf_format(sql, sizeof(sql), "PRAGMA user_version = %d", mf_schema.version + 1);
    ck_assert_int_ge(mf_sql_run(s, sql, ""), 0);
}

static void make_garbage(const char *path)
{
    char text[8192];
    memset(text, 'x', sizeof(text));
    write_text(path, text, sizeof(text));
}

/* Damages a database but leaves its first page intact. */
static void make_damaged(const char *path)
{
    char text[16384];
    make_newer(path);
    memset(text, 'x', sizeof(text));
    FILE *f = fopen(path, "r+e");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, 4096, SEEK_SET), 0);
    for (int i = 0; i < 20; i++)
        ck_assert_uint_eq(fwrite(text, 1, sizeof(text), f), sizeof(text));
    ck_assert_int_eq(fclose(f), 0);
}

static void make_empty(const char *path)
{
    write_text(path, "", 0);
}

static void make_byte(const char *path)
{
    write_text(path, "\n", 1);
}

/* The header of a database without its pages. */
static void make_cut(const char *path)
{
    make_newer(path);
    ck_assert_int_eq(truncate(path, 99), 0);
}

/* A database of another program, which has no schema version of moefarmd. */
static void make_foreign(const char *path)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    ck_assert_int_ge(mf_sql_run(s, "PRAGMA user_version = 0", ""), 0);
}

static void make_folder(const char *path)
{
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void make_missing(const char *path)
{
    (void)path;
}

/* clang-format off */
static const struct {
    void (*make)(const char *path);
    bool backup;
    const char *message[2];
} databases[] = {
    {make_newer,   false, {"this program needs ", "use the programs of the newer release"}},
    {make_newer,   true,  {"this program needs ", "use the programs of the newer release"}},
    {make_garbage, false, {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_garbage, true,  {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_empty,   false, {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_byte,    false, {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_cut,     false, {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_foreign, false, {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_damaged, false, {"is damaged or not a moefarmd database", "restore a backup (docs/operations.md)"}},
    {make_folder,  false, {"is not a regular file", "move it away"}},
    {make_folder,  true,  {"is not a regular file", "move it away"}},
    {make_missing, true,  {"no such file", "--state"}},
};
/* clang-format on */

static bool has_twice(const char *text, const char *part)
{
    const char *first = strstr(text, part);
    return first && strstr(first + 1, part);
}

/* Checks that the message is one line, contains no meaningless errno text, and does not repeat a text. */
static void check_one_line(struct ran r)
{
    static const char *const empty[] = {"Bad message", "Operation not supported", "Input/output error",
                                        "Resource temporarily unavailable", "Invalid argument"};
    ck_assert_int_eq(r.code, 1);
    ck_assert_ptr_eq(strchr(r.text, '\n'), strrchr(r.text, '\n'));
    for (size_t i = 0; i < MF_ARRAY_LEN(empty); i++)
        ck_assert_msg(!strstr(r.text, empty[i]), "%s", r.text);
    ck_assert_msg(!has_twice(r.text, "No such file"), "%s", r.text);
}

MF_TEST(reports_a_bad_database, .rows = MF_ARRAY_LEN(databases))
{
    char path[128], copy[128];
    mf_format(path, sizeof(path), "%s/farm.db", state);
    mf_format(copy, sizeof(copy), "%s/copy.db", folder);
    ck_assert_int_eq(mkdir(state, 0700), 0);
    databases[_i].make(path);
    struct ran r = start(databases[_i].backup ? (const char *const[]){"--backup", copy, NULL}
                                              : (const char *const[]){NULL});
    check_one_line(r);
    assert_says(r, path);
    for (size_t i = 0; i < MF_ARRAY_LEN(databases[_i].message); i++)
        assert_says(r, databases[_i].message[i]);
    ck_assert_int_lt(access(copy, F_OK), 0);
}

/* ---- new farm ---- */

/* Modes of a state folder that exists before the start. */
static const struct {
    mode_t mode;
    const char *warning; /* NULL: none */
} folders[] = {
    {0, NULL}, /* moefarmd creates the folder */
    {0700, NULL},
    {0755, NULL},
    {0775, "is writable by others (mode 0775): they can replace the database; run chmod go-w"},
    {0777, "is writable by others (mode 0777)"},
    {01777, NULL}, /* with the sticky bit, others cannot replace files */
};

/* A new farm is announced, and only the owner can read its files, whatever the umask. */
MF_TEST(announces_a_new_farm, .rows = MF_ARRAY_LEN(folders))
{
    static const char *const files[] = {"farm.db", "farm.db-wal", "farm.db-shm"};
    struct farm_process p = {.log = "log", .log_level = "info"};
    char path[320], text[1 << 14];
    struct stat st;
    mf_format(p.folder, sizeof(p.folder), "%s", folder);
    if (folders[_i].mode)
        ck_assert(mkdir(state, 0700) == 0 && chmod(state, folders[_i].mode) == 0);
    (void)umask(0);
    farm_process_start(&p, 3000);
    for (size_t i = 0; i < MF_ARRAY_LEN(files); i++) {
        mf_format(path, sizeof(path), "%s/%s", state, files[i]);
        ck_assert_msg(stat(path, &st) == 0, "%s", path);
        ck_assert_msg((st.st_mode & 0777) == 0600, "%s has mode %o", path, st.st_mode & 0777);
    }
    (void)farm_process_kill(&p, SIGTERM);
    mf_format(path, sizeof(path), "%s/log", folder);
    ck_assert_int_eq(mf_secret_file_read(path, text, sizeof(text)), 0);
    ck_assert_msg(strstr(text, "started a new farm: created ") != NULL, "%s", text);
    ck_assert_msg(folders[_i].warning ? strstr(text, folders[_i].warning) != NULL
                                      : strstr(text, "writable by others") == NULL,
                  "%s", text);
    /* the second start finds the farm */
    ck_assert_int_eq(truncate(path, 0), 0);
    farm_process_start(&p, 3000);
    (void)farm_process_kill(&p, SIGTERM);
    ck_assert_int_eq(mf_secret_file_read(path, text, sizeof(text)), 0);
    ck_assert_msg(strstr(text, "new farm") == NULL, "%s", text);
}

/* ---- certificate ---- */

#define CERTIFICATE MF_TEST_DATA "/tls/cert.pem"
#define KEY         MF_TEST_DATA "/tls/key.pem"

/* clang-format off */
static const struct {
    const char *certificate, *key;
} pairs[] = {
    {__FILE__,    KEY},
    {CERTIFICATE, __FILE__},
    {KEY,         CERTIFICATE},
};
/* clang-format on */

MF_TEST(reports_a_bad_certificate, .rows = MF_ARRAY_LEN(pairs))
{
    struct ran r =
        start((const char *const[]){"--tls-cert", pairs[_i].certificate, "--tls-key", pairs[_i].key, NULL});
    check_one_line(r);
    assert_says(r, pairs[_i].certificate);
    assert_says(r, pairs[_i].key);
    assert_says(r, "GnuTLS");
    assert_says(r, "a PEM certificate and its PEM key");
}

/* ---- ports ---- */

static const char *const listeners[] = {"--http", "--hub"};

MF_TEST(reports_a_used_port, .rows = MF_ARRAY_LEN(listeners))
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(address);
    char taken[32];
    _cleanup_(mf_closep) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, len), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    mf_format(taken, sizeof(taken), "127.0.0.1:%d", ntohs(address.sin_port));
    struct ran r = start((const char *const[]){listeners[_i], taken, NULL});
    check_one_line(r);
    assert_says(r, taken);
    assert_says(r, "Address already in use");
    ck_assert_msg(!has_twice(r.text, "Address already in use"), "%s", r.text);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = setup, .teardown = teardown});
}
