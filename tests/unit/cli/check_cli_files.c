/* moefarm: tests output to files, links, FIFOs, devices and open descriptors. */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "common/base/cleanup.h"
#include "common/base/sha256.h"
#include "support/farm/fake_http.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/table_columns.h"

static struct fake_http server;

static void teardown(void)
{
    fake_http_release(&server);
    remove_folder();
}

/* SHA-256 of HEADER ROW("4", "90.0"), and of TWO_ROWS */
#define HASH_1              "641b7e4cab12fa00a37b9ad178d68c99c9cbf316ce4558d32273ecedecf9284d"
#define HASH_2              "e736d2bb2acbe937b35d11da2290adb534954fb0b47433787d1802dcb4637f3a"
#define RELEASE(rows, hash) "{\"id\":1,\"rows\":" rows ",\"sha256\":\"" hash "\"}"
#define HEADER              TUNED_COLUMNS OWN_COLUMNS "\n"
#define ROW(T, us)                                                                                      \
    "cpu-x,2," T                                                                                        \
    ",2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0," \
    "16,0,50.0,a,0.0%,40.0,b,0.0%," us                                                                  \
    ",0,0,0,1.0,2.0,move:s|tile:a,w1=row,some cpu,r1,gcc,uniform,1,20,0.5,moefarm:race\n"

MF_TEST(export_to_file)
{
    static const struct fake_answer answers[] = {
        {.request = "GET /api/v1/export/tuned_fmoe.csv?batch=7&gfx=cpu-x",
         .status = 200,
         .type = "text/csv",
         .body = HEADER ROW("4", "90.0"),
         .headers = "Moefarm-Left-Out: 3\r\n"}};
    struct stat st;
    struct ran r;

    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "export", "--batch", "7", "--gfx", "cpu-x", "-o", in_folder("table.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.err, "3 rows left out");
    ck_assert_str_eq(read_file(in_folder("table.csv")), HEADER ROW("4", "90.0"));
    ck_assert_int_eq(stat(in_folder("table.csv"), &st), 0);
    ck_assert_int_ne(st.st_mode & 0400, 0);
    r = moefarm(server.url, "export", "--batch", "7", "--gfx", "cpu-x", NULL);
    ck_assert_str_eq(r.out, HEADER ROW("4", "90.0"));
    r = moefarm(server.url, "export", "--batch", "7", "--gfx", "cpu-x", "-o", in_folder("no/such/folder"),
                NULL);
    assert_code(r, 1);
}

static const struct fake_answer one_export[] = {{.request = "GET /api/v1/export/tuned_fmoe.csv*",
                                                 .status = 200,
                                                 .type = "text/csv",
                                                 .body = HEADER ROW("4", "90.0")}};

/* ---- configuration files of vLLM and SGLang ---- */

#define LEFT_OUT(reason) "{\"class\":\"sm_90/132\",\"shape\":\"8,1\",\"reason\":\"" reason "\"}"
#define CONFIGS(consumer, files, left_out)                                                                   \
    "{\"consumer\":\"" consumer "\",\"variable\":\"VARIABLE\",\"files\":{" files "},\"left_out\":[" left_out \
    "]}"

/* clang-format off */
static const struct {
    const char *consumer, *body, *path, *content;
    int code;
    const char *out, *err;
} configs[] = {
    {"vllm", CONFIGS("vllm", "\"E=8,N=1,device_name=A.json\":\"{}\"", ""),
     "E=8,N=1,device_name=A.json", "{}", 0,
     "wrote 1 file to ", ""},
    {"vllm", CONFIGS("vllm", "\"a.json\":\"{}\"", LEFT_OUT("the default is faster")),
     "a.json", "{}", 0,
     "start the server with VARIABLE=", "left out: 8,1 on sm_90/132: the default is faster\n"},
    {"sglang", CONFIGS("sglang", "\"configs/triton_3_6_0/a.json\":\"[1]\"", ""),
     "configs/triton_3_6_0/a.json", "[1]", 0, "(the folder replaces all packaged files", ""},
    {"vllm", CONFIGS("vllm", "", LEFT_OUT("slow")), NULL, NULL, 1, "",
     "the farm has no row for consumer vllm"},
    {"vllm", CONFIGS("vllm", "\"../a.json\":\"{}\"", ""), NULL, NULL, 3, "",
     "'../a.json', which is not below"},
    {"vllm", CONFIGS("vllm", "\"/a.json\":\"{}\"", ""), NULL, NULL, 3, "",
     "'/a.json', which is not below"},
    {"vllm", CONFIGS("vllm", "\"x/../../a.json\":\"{}\"", ""), NULL, NULL, 3, "", "which is not below"},
    {"vllm", CONFIGS("vllm", "\"a.json\":1", ""), NULL, NULL, 3, "", "check that the URL is moefarmd's"},
    {"vllm", "[]", NULL, NULL, 3, "", "the reply has no files"},
};
/* clang-format on */

MF_TEST(export_configs, .rows = MF_ARRAY_LEN(configs))
{
    struct fake_answer answer = {.status = 200, .type = "application/json", .body = configs[_i].body};
    char request[128], headers[96], hash[MF_SHA256_TEXT_MAX];

    mf_sha256_print(answer.body, strlen(answer.body), hash);
    (void)snprintf(headers, sizeof(headers), "ETag: \"%s\"\r\n", hash);
    answer.headers = headers;
    (void)snprintf(request, sizeof(request), "GET /api/v1/export/configs.json?consumer=%s&triton=3.6.0",
                   configs[_i].consumer);
    answer.request = request;
    fake_http_start(&server, &answer, 1);
    struct ran r = moefarm(server.url, "export", "--consumer", configs[_i].consumer, "--triton-version",
                           "3.6.0", "-o", in_folder("new"), NULL);
    assert_code(r, configs[_i].code);
    assert_says(r.out, configs[_i].out);
    assert_says(r.err, configs[_i].err);
    if (!configs[_i].path) {
        (void)rmdir(in_folder("new"));
        return;
    }
    char path[160];
    (void)snprintf(path, sizeof(path), "new/%s", configs[_i].path);
    ck_assert_str_eq(read_file(in_folder(path)), configs[_i].content);
    ck_assert_int_eq(unlink(in_folder(path)), 0);
    for (char *slash = strrchr(path, '/'); slash; slash = strrchr(path, '/')) {
        *slash = '\0';
        ck_assert_int_eq(rmdir(in_folder(path)), 0);
    }
}

/* If the output is a symbolic link, the target of the link is replaced or created, and the link is kept. */
MF_TEST(export_through_a_link)
{
    struct stat st;

    fake_http_start(&server, one_export, 1);
    ck_assert_int_eq(symlink("other.csv", in_folder("table.csv")), 0);
    for (int i = 0; i < 2; i++) {
        assert_code(moefarm(server.url, "export", "-o", in_folder("table.csv"), NULL), 0);
        ck_assert_int_eq(lstat(in_folder("table.csv"), &st), 0);
        ck_assert(S_ISLNK(st.st_mode));
        ck_assert_str_eq(read_file(in_folder("other.csv")), HEADER ROW("4", "90.0"));
        text_file_write(in_folder("other.csv"), "older, and longer than nothing\n");
    }
}

/* Data for a FIFO is written to the FIFO, but a merge into a FIFO is rejected. The test opens the reading end
 * first, so that the writer does not block. */
MF_TEST(export_into_a_fifo)
{
    struct stat st;
    struct ran r;
    char found[4096] = "";
    int fd;

    fake_http_start(&server, one_export, 1);
    ck_assert_int_eq(mkfifo(in_folder("table.csv"), 0600), 0);
    fd = open(in_folder("table.csv"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    assert_code(moefarm(server.url, "export", "-o", in_folder("table.csv"), NULL), 0);
    ck_assert_int_gt(read(fd, found, sizeof(found) - 1), 0);
    ck_assert_str_eq(found, HEADER ROW("4", "90.0"));
    r = moefarm(server.url, "export", "--into", in_folder("table.csv"), NULL);
    assert_code(r, 1);
    assert_says(r.err, "is a device or a FIFO; a table must be a regular file");
    (void)close(fd);
    ck_assert_int_eq(lstat(in_folder("table.csv"), &st), 0);
    ck_assert(S_ISFIFO(st.st_mode));
    ck_assert_int_ne(access(in_folder("table.csv.lock"), F_OK), 0);
}

static const struct mf_test_group optional_tests = {
    .timeout_s = 60, .setup = make_folder, .teardown = teardown, .optional = true};

/* The output is a device node like /dev/null. The test needs root, because only root can create the node, and
 * only root could replace it. */
MF_TEST(export_to_a_device, .group = &optional_tests)
{
    struct stat st;

    if (mknod(in_folder("table.csv"), S_IFCHR | 0600, makedev(1, 3)) < 0) {
        mf_check_skip("mknod: %s", strerrordesc_np(errno));
        return;
    }
    fake_http_start(&server, one_export, 1);
    struct ran r = moefarm(server.url, "export", "-o", in_folder("table.csv"), NULL);
    /* on a nodev mount the node cannot be opened, but it must be kept */
    if (!strstr(r.err, "Permission denied"))
        assert_code(r, 0);
    ck_assert_int_eq(lstat(in_folder("table.csv"), &st), 0);
    ck_assert(S_ISCHR(st.st_mode));
}

/* The output is an open descriptor. As with the shell's ">> log", the file keeps its old contents and its
 * inode. */
MF_TEST(export_into_a_descriptor)
{
    struct stat st;
    char name[32], found[4096] = "";

    fake_http_start(&server, one_export, 1);
    text_file_write(in_folder("other.csv"), "before\n");
    int fd = open(in_folder("other.csv"), O_RDWR | O_APPEND); /* without O_CLOEXEC: the program inherits it */
    ck_assert_int_ge(fd, 0);
    mf_format(name, sizeof(name), "/dev/fd/%d", fd);
    assert_code(moefarm(server.url, "export", "-o", name, NULL), 0);
    ck_assert_int_gt(pread(fd, found, sizeof(found) - 1, 0), 0);
    ck_assert_str_eq(found, "before\n" HEADER ROW("4", "90.0"));
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_eq(st.st_nlink, 1);
    struct ran r = moefarm(server.url, "export", "--into", name, NULL);
    assert_code(r, 1);
    assert_says(r.err, "is an open descriptor; a table must be a regular file");
    (void)close(fd);
    ck_assert_str_eq(read_file(in_folder("other.csv")), found);
}

/* The output is a descriptor of another process, which is the test. As with the shell's ">", the file is
 * truncated first. */
MF_TEST(export_into_descriptor_of_other_process)
{
    char name[48], found[4096] = "";

    fake_http_start(&server, one_export, 1);
    text_file_write(in_folder("other.csv"), "older, and longer than nothing\n");
    _cleanup_(mf_closep) int fd = open(in_folder("other.csv"), O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    mf_format(name, sizeof(name), "/proc/%d/fd/%d", (int)getpid(), fd);
    assert_code(moefarm(server.url, "export", "-o", name, NULL), 0);
    ck_assert_int_gt(pread(fd, found, sizeof(found) - 1, 0), 0);
    ck_assert_str_eq(found, HEADER ROW("4", "90.0"));
    struct ran r = moefarm(server.url, "export", "--into", name, NULL);
    assert_code(r, 1);
    assert_says(r.err, "is an open descriptor; a table must be a regular file");
    ck_assert_str_eq(read_file(in_folder("other.csv")), found);
}

MF_TEST(write_to_standard_output)
{
    static const struct fake_answer answers[] = {
        {.request = "GET /api/v1/export/tuned_fmoe.csv*",
         .status = 200,
         .type = "text/csv",
         .body = HEADER ROW("4", "90.0")},
        {.request = "GET /api/v1/channels/stable/tuned_fmoe.csv",
         .status = 200,
         .type = "text/csv",
         .body = HEADER ROW("4", "90.0"),
         .headers = "Moefarm-Release: 1\r\n"},
        {.request = "GET /api/v1/releases/1", .status = 200, .body = RELEASE("1", HASH_1)}};
    struct stat before, after;

    fake_http_start(&server, answers, 3);
    text_file_write(in_folder("out"), "");
    ck_assert_int_eq(stat(in_folder("out"), &before), 0);
    struct ran r = moefarm(server.url, "export", "-o", "/dev/stdout", NULL);
    assert_code(r, 0);
    ck_assert_str_eq(r.out, HEADER ROW("4", "90.0"));
    r = moefarm(server.url, "pull", "stable", "--quiet", "-o", "/dev/stdout", NULL);
    assert_code(r, 0);
    ck_assert_str_eq(r.out, HEADER ROW("4", "90.0"));
    ck_assert_int_eq(stat(in_folder("out"), &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
}

MF_TEST(export_to_a_folder)
{
    struct ran r;

    fake_http_start(&server, one_export, 1);
    r = moefarm(server.url, "export", "-o", folder, NULL);
    assert_code(r, 1);
    assert_says(r.err, "is a folder; name a file in it");
}

/* ---- pull of configuration files ---- */

#define DEEPSEEK(n) "E=256,N=" n ",device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
#define FILE_256    "\"" DEEPSEEK("256") "\":\"{1}\""
#define FILE_128    "\"" DEEPSEEK("128") "\":\"{2}\""

/* Starts a server whose channel `live` has a release with these files. */
static void serve_files(const char *body)
{
    static char hash[MF_SHA256_TEXT_MAX], headers[160], release[128];
    static struct fake_answer answers[2];

    mf_sha256_print(body, strlen(body), hash);
    (void)snprintf(headers, sizeof(headers), "ETag: \"%s\"\r\nMoefarm-Release: 7 files\r\n", hash);
    (void)snprintf(release, sizeof(release), "{\"id\":7,\"sha256\":\"%s\"}", hash);
    answers[0] = (struct fake_answer){.request = "GET /api/v1/channels/live/configs.json",
                                      .status = 200,
                                      .type = "application/json",
                                      .body = body,
                                      .headers = headers};
    answers[1] = (struct fake_answer){.request = "GET /api/v1/releases/7", .status = 200, .body = release};
    fake_http_start(&server, answers, 2);
}

/* Each row is one pull into the same folder, after an edit of the file of TP 8. */
/* clang-format off */
static const struct {
    const char *files, *edit; /* edit: new content of the file before the pull; NULL: none */
    const char *words[5];
    int code;
    const char *says;
    const char *n256, *n128;  /* content of the two files afterwards; NULL: no file */
} pulls[] = {
    {FILE_256 "," FILE_128, NULL, {0}, 0, "release 7 of channel live, 2 files: 2 written, 0 removed",
     "{1}", "{2}"},
    {FILE_256 "," FILE_128, NULL, {0}, 0, "already at release 7 of channel live, 2 files", "{1}", "{2}"},
    {FILE_256 "," FILE_128, NULL, {"--exit-code"}, 0, "start the server with VARIABLE=", "{1}", "{2}"},
    {FILE_256, NULL, {"--exit-code"}, 10, "1 file: 0 written, 1 removed", "{1}", NULL},
    {FILE_256, "{9}", {0}, 1, "was edited or comes from another source; replace it with --force",
     "{9}", NULL},
    {FILE_256, NULL, {"--force"}, 0, "1 written, 0 removed", "{1}", NULL},
    {FILE_128, "{9}", {0}, 0, "which was edited; this pull has no such file", "{9}", "{2}"},
    {FILE_256 "," FILE_128, "{1}", {"--model", "deepseek-v3", "--tp", "16"}, 0,
     "already at release 7 of channel live, 1 file\n", "{1}", "{2}"},
    {FILE_256 "," FILE_128, NULL, {"--model", "deepseek-v3", "--tp", "4"}, 1,
     "has no file " DEEPSEEK("512") "; the folder is unchanged", "{1}", "{2}"},
    {FILE_256, NULL, {"--format", "sglang"}, 1, "channel live has files for vllm; use --format vllm",
     "{1}", "{2}"},
    {FILE_256, NULL, {"--format", "json"}, 2,
     "--format 'json': expected csv, vllm or sglang", "{1}", "{2}"},
    {"\"../x.json\":\"{1}\"", NULL, {0}, 3, "which is not below the folder", "{1}", "{2}"},
};
/* clang-format on */

static void check_content(const char *n, const char *expected)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "new/" DEEPSEEK("%s"), n);
    if (expected)
        ck_assert_str_eq(read_file(in_folder(path)), expected);
    else
        ck_assert_int_ne(access(in_folder(path), F_OK), 0);
}

MF_TEST(pull_configs)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(pulls); i++) {
        const char *const *w = pulls[i].words;
        char body[1024];
        struct ran r;

        if (pulls[i].edit)
            text_file_write(in_folder("new/" DEEPSEEK("256")), pulls[i].edit);
        (void)snprintf(body, sizeof(body), "{\"consumer\":\"vllm\",\"variable\":\"VARIABLE\",\"files\":{%s}}",
                       pulls[i].files);
        serve_files(body);
        r = moefarm(server.url, "pull", "live", "-o", in_folder("new"), "--format", "vllm", w[0], w[1], w[2],
                    w[3], NULL);
        ck_assert_msg(r.code == pulls[i].code, "pull %zu: exit code %d: %s%s", i, r.code, r.out, r.err);
        ck_assert_msg(strstr(r.out, pulls[i].says) || strstr(r.err, pulls[i].says), "pull %zu: %s%s", i,
                      r.out, r.err);
        check_content("256", pulls[i].n256);
        check_content("128", pulls[i].n128);
        fake_http_release(&server);
    }
    for (const char *const *name =
             (const char *const[]){"moefarm.json", DEEPSEEK("256"), DEEPSEEK("128"), NULL};
         *name; name++) {
        char path[160];
        (void)snprintf(path, sizeof(path), "new/%s", *name);
        ck_assert_int_eq(unlink(in_folder(path)), 0);
    }
    ck_assert_int_eq(rmdir(in_folder("new")), 0);
}

/* moefarm pull must not read the old contents of a FIFO, because it would block forever. */
MF_TEST(pull_into_a_fifo)
{
    static const struct fake_answer answers[] = {
        {.request = "GET /api/v1/channels/stable/tuned_fmoe.csv",
         .status = 200,
         .type = "text/csv",
         .body = HEADER ROW("4", "90.0"),
         .headers = "Moefarm-Release: 1\r\n"},
        {.request = "GET /api/v1/releases/1", .status = 200, .body = RELEASE("1", HASH_1)}};
    char found[4096] = "";
    int fd;

    fake_http_start(&server, answers, 2);
    ck_assert_int_eq(mkfifo(in_folder("table.csv"), 0600), 0);
    fd = open(in_folder("table.csv"), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    assert_code(moefarm(server.url, "pull", "stable", "-o", in_folder("table.csv"), NULL), 0);
    ck_assert_int_gt(read(fd, found, sizeof(found) - 1), 0);
    ck_assert_str_eq(found, HEADER ROW("4", "90.0"));
    (void)close(fd);
    ck_assert_int_ne(access(in_folder("table.csv.lock"), F_OK), 0);
}

MF_TEST(tune_into_a_fifo)
{
    ck_assert_int_eq(mkfifo(in_folder("table.csv"), 0600), 0);
    text_file_write(in_folder("shapes.csv"), HEADER ROW("4", "90.0"));
    struct ran r = moefarm("", "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "-o: ");
    assert_says(r.err, "is a device or a FIFO; a table must be a regular file");
}

MF_TEST(export_into_file)
{
    static const struct fake_answer answers[] = {
        {.request = "GET /api/v1/export/tuned_fmoe.csv*",
         .status = 200,
         .type = "text/csv",
         .body = HEADER ROW("4", "90.0") ROW("8", "95.0") ROW("16", "99.0")}};
    struct ran r;
    char *table;

    fake_http_start(&server, answers, 1);
    text_file_write(in_folder("table.csv"), HEADER ROW("4", "100.0") ROW("8", "80.0"));
    text_file_write(in_folder("other.csv"), HEADER ROW("32", "1.0"));
    r = moefarm(server.url, "export", "--into", in_folder("table.csv"), "--set", in_folder("other.csv"),
                NULL);
    assert_code(r, 0);
    assert_says(r.out, "1 added, 1 replaced, 1 kept, 0 foreign\n");
    assert_says(r.out, "replaced  cpu-x,2,4,2048");
    assert_says(r.out, "kept      cpu-x,2,8,2048");
    assert_says(r.out, "added     cpu-x,2,16,2048");
    table = read_file(in_folder("table.csv"));
    ck_assert_str_eq(table, HEADER ROW("4", "90.0") ROW("8", "80.0") ROW("16", "99.0"));

    /* the key is also in another file of the set, so production would refuse to load both files */
    text_file_write(in_folder("other.csv"), HEADER ROW("16", "1.0"));
    r = moefarm(server.url, "export", "--into", in_folder("table.csv"), "--set", in_folder("other.csv"),
                NULL);
    assert_code(r, 1);
    ck_assert_str_eq(read_file(in_folder("table.csv")), table);
}

#define TWO_ROWS HEADER ROW("4", "90.0") ROW("8", "95.0")

/* Replies that are not the table that the farm sent. Each command must leave the file unchanged. */
static const struct {
    const char *words[4]; /* the name of the file follows the last word */
    struct fake_answer answer;
    const char *release; /* reply to the search for a release */
    const char *says;
} damaged_replies[] = {
    {{"pull", "stable", "-o"}, {.cut_at_row = true}, RELEASE("2", HASH_2), "was cut or changed on the way"},
    {{"export", "-o"}, {.cut_at_row = true}, NULL, "was cut or changed on the way"},
    {{"export", "--into"}, {.cut_at_row = true}, NULL, "was cut or changed on the way"},
    {{"pull", "stable", "-o"}, {.no_etag = true}, RELEASE("2", HASH_2), "has no ETag with the hash"},
    {{"export", "-o"}, {.no_etag = true}, NULL, "has no ETag with the hash"},
    {{"export", "--into"},
     {.no_etag = true, .headers = "ETag: \"v7\"\r\n"},
     NULL,
     "has no ETag with the hash"},
    {{"pull", "stable", "-o"}, {0}, RELEASE("3", HASH_2), "release 1 has 3 rows, the reply has 2"},
    {{"pull", "stable", "-o"}, {0}, RELEASE("2", HASH_1), "is not the content of release 1"},
    {{"pull", "stable", "-o"}, {0}, "{}", "is not the content of release 1"},
};

MF_TEST(damaged_replies_change_no_file, .rows = MF_ARRAY_LEN(damaged_replies))
{
    const char *const *words = damaged_replies[_i].words;
    struct fake_answer answers[] = {
        damaged_replies[_i].answer,
        {.request = "GET /api/v1/releases*",
         .status = 200,
         .body = damaged_replies[_i].release ? damaged_replies[_i].release : "{}"}};
    char headers[128];

    mf_format(headers, sizeof(headers), "Moefarm-Release: 1 one\r\n%s",
              answers[0].headers ? answers[0].headers : "");
    answers[0].request = "GET *tuned_fmoe.csv*";
    answers[0].status = 200;
    answers[0].type = "text/csv";
    answers[0].body = TWO_ROWS;
    answers[0].headers = headers;
    fake_http_start(&server, answers, MF_ARRAY_LEN(answers));
    text_file_write(in_folder("table.csv"), HEADER ROW("4", "100.0"));
    const char *force = strcmp(words[0], "pull") == 0 ? "--force" : "--batch=1";
    struct ran r =
        words[2] ? moefarm(server.url, words[0], force, words[1], words[2], in_folder("table.csv"), NULL)
                 : moefarm(server.url, words[0], force, words[1], in_folder("table.csv"), NULL);
    assert_code(r, 3);
    assert_says(r.err, damaged_replies[_i].says);
    ck_assert_str_eq(read_file(in_folder("table.csv")), HEADER ROW("4", "100.0"));
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = make_folder, .teardown = teardown});
}
