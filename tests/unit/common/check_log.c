#include "common/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "support/mf_check.h"

/* The tests redirect stderr to a temporary file and read it back. Each test runs in its own process. */
static FILE *captured;

static void capture(void)
{
    captured = tmpfile();
    ck_assert_ptr_nonnull(captured);
    ck_assert_int_ge(dup2(fileno(captured), STDERR_FILENO), 0);
}

/* Returns all output so far. */
static const char *written(void)
{
    static char text[1 << 20];
    rewind(captured);
    size_t n = fread(text, 1, sizeof(text) - 1, captured);
    text[n] = '\0';
    return text;
}

/* Returns the line without its timestamp and the space after the timestamp. */
static const char *after_timestamp(const char *line)
{
    ck_assert_uint_ge(strlen(line), 25);
    return line + 25;
}

MF_TEST(line_has_time_program_and_level)
{
    struct tm tm = {0};
    int ms = -1;
    capture();
    mf_log_init("moefarmd", MF_LOG_INFO);
    int64_t before = mf_wall_ms();
    log_info("shape %d of %s", 7, "a batch");
    int64_t after = mf_wall_ms();
    const char *line = written();
    ck_assert_str_eq(after_timestamp(line), "moefarmd info: shape 7 of a batch\n");

    /* parse the time with the C library; the result does not depend on the time zone */
    const char *rest = strptime(line, "%Y-%m-%dT%H:%M:%S", &tm);
    ck_assert_ptr_nonnull(rest);
    ck_assert_int_eq(sscanf(rest, ".%3dZ ", &ms), 1);
    int64_t then = (int64_t)timegm(&tm) * 1000 + ms;
    ck_assert_int_ge(then, before);
    ck_assert_int_le(then, after);
}

static const struct {
    enum mf_log_level level;
    const char *expect;
} levels[] = {
    {MF_LOG_ERROR, "error"},
    {MF_LOG_WARNING, "error warning"},
    {MF_LOG_INFO, "error warning info"},
    {MF_LOG_DEBUG, "error warning info debug"},
};

MF_TEST(messages_above_level_are_dropped, .rows = MF_ARRAY_LEN(levels))
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char got[64] = "";
    capture();
    mf_log_init("p", levels[_i].level);
    mf_log(MF_LOG_ERROR, "x");
    log_warn("x");
    log_info("x");
    log_debug("x");
    for (const char *line = written(); *line; line = strchr(line, '\n') + 1) {
        for (int i = 0; i < 4; i++) {
            if (strncmp(after_timestamp(line) + 2, names[i], strlen(names[i])) == 0)
                snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s", *got ? " " : "", names[i]);
        }
    }
    ck_assert_str_eq(got, levels[_i].expect);
}

MF_TEST(errno_text_is_appended)
{
    capture();
    mf_log_init("p", MF_LOG_ERROR);
    errno = EINTR;
    ck_assert_int_eq(log_err(-ENOENT, "open %s", "x"), -ENOENT);
    ck_assert_int_eq(log_err(-99999, "y"), -99999);
    ck_assert_int_eq(errno, EINTR);
    const char *text = written(), *second = strchr(text, '\n') + 1;
    ck_assert_int_eq(strncmp(after_timestamp(text), "p error: open x: No such file or directory\n", 43), 0);
    ck_assert_str_eq(after_timestamp(second), "p error: y: error -99999\n");
}

/* Text from a peer must not start a new line or contain terminal control sequences. */
MF_TEST(message_stays_on_one_line)
{
    capture();
    mf_log_init("p", MF_LOG_INFO);
    log_info("%s", "a\nb\r\x1b[2Jc\td\xc3\xa4");
    ck_assert_str_eq(after_timestamp(written()), "p info: a b  [2Jc d\xc3\xa4\n");
}

static const int lengths[] = {3900, 4000, 4030, 4050, 4060, 4070, 4096, 9999};

/* Message lengths around the maximum line length. The output is always one line. A truncated message ends in
 * '…' and keeps the error text. */
MF_TEST(long_message_is_truncated, .rows = MF_ARRAY_LEN(lengths))
{
    static char message[10000];
    capture();
    mf_log_init("p", MF_LOG_INFO);
    memset(message, 'm', (size_t)lengths[_i]);
    (void)log_err(-EIO, "%s", message);
    const char *line = written();
    const char *end = strchr(line, '\n');
    ck_assert_ptr_nonnull(end);
    ck_assert_str_eq(end, "\n");
    ck_assert_int_le(end - line, 4095);
    ck_assert_ptr_nonnull(strstr(line, ": Input/output error\n"));
    bool whole = strstr(line, message) != NULL, cut = strstr(line, "m…: ") != NULL;
    ck_assert(whole != cut);
    ck_assert(lengths[_i] != 3900 || whole);
    ck_assert(lengths[_i] != 4096 || cut);
}

enum { THREADS = 4, LINES = 200 };

static void *log_many(void *text)
{
    for (int i = 0; i < LINES; i++)
        log_info("%s", (const char *)text);
    return NULL;
}

/* Lines of different threads are not interleaved. */
MF_TEST(threads_write_whole_lines)
{
    static char texts[THREADS][500];
    pthread_t threads[THREADS];
    int counts[THREADS] = {0};
    capture();
    mf_log_init("p", MF_LOG_INFO);
    for (int i = 0; i < THREADS; i++) {
        memset(texts[i], 'a' + i, sizeof(texts[i]) - 1);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, log_many, texts[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (const char *line = written(); *line; line = strchr(line, '\n') + 1) {
        const char *text = after_timestamp(line) + strlen("p info: ");
        int i = *text - 'a';
        ck_assert(i >= 0 && i < THREADS);
        ck_assert_int_eq(strncmp(text, texts[i], sizeof(texts[i]) - 1), 0);
        ck_assert_int_eq(text[sizeof(texts[i]) - 1], '\n');
        counts[i]++;
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(counts[i], LINES);
}

/* A peer that repeats its message for ever causes a limited number of lines. */
MF_TEST(limits_repeated_lines)
{
    struct mf_log_limit l = {0};
    int n = 0;
    capture();
    mf_log_init("p", MF_LOG_INFO);
    for (int64_t ms = 1; ms <= MF_LOG_LIMIT_MS; ms++)
        n += mf_log_limit(&l, 3, ms);
    ck_assert_int_eq(n, 3);
    ck_assert(mf_log_limit(&l, 3, MF_LOG_LIMIT_MS + 1));
    ck_assert_ptr_nonnull(strstr(written(), "p info: left out 9997 similar lines\n"));
    ck_assert(mf_log_limit(&l, 3, 2 * MF_LOG_LIMIT_MS + 1));
}

int main(void)
{
    return mf_check_main(NULL);
}
