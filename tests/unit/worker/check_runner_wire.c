/* worker/runner/runner_wire.c and worker/agent/memfd_store.c: messages and file descriptors over a socket
 * pair. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "measure/session/memory.h"
#include "support/mf_check.h"
#include "worker/agent/memfd_store.h"
#include "worker/runner/runner_wire.h"

static struct mf_channel a, b;

static void setup(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    mf_channel_init(&a, pair[0]);
    mf_channel_init(&b, pair[1]);
}

static void teardown(void)
{
    mf_channel_release(&a);
    mf_channel_release(&b);
}

static cJSON *message(const char *op, const char *text)
{
    cJSON *m = mf_channel_message(op);
    ck_assert_ptr_nonnull(m);
    ck_assert_ptr_nonnull(cJSON_AddStringToObject(m, "text", text));
    return m;
}

static void send_op(struct mf_channel *c, const char *op, const char *text, int fd)
{
    _cleanup_(cJSON_Deletep) cJSON *m = message(op, text);
    ck_assert_int_eq(mf_channel_send(c, m, fd), 0);
}

static void expect_op(struct mf_channel *c, const char *op, const char *text)
{
    _cleanup_(cJSON_Deletep) cJSON *m = NULL;
    const char *got;
    ck_assert_int_eq(mf_channel_wait(c, 5000, &m), 1);
    ck_assert_str_eq(mf_channel_op(m), op);
    ck_assert_int_eq(mf_json_text(m, "text", &got), 0);
    ck_assert_str_eq(got, text);
}

static void write_raw(const char *text, size_t len)
{
    ck_assert_int_eq(write(a.fd, text, len), (ssize_t)len);
}

MF_TEST(round_trip)
{
    send_op(&a, "one", "with \"quotes\" and a \n newline", -1);
    send_op(&a, "two", "", -1);
    expect_op(&b, "one", "with \"quotes\" and a \n newline");
    expect_op(&b, "two", "");
    send_op(&b, "three", "x", -1);
    expect_op(&a, "three", "x");
    cJSON *none = NULL;
    ck_assert_int_eq(mf_channel_next(&a, &none), 0);
    ck_assert_int_eq(mf_channel_wait(&a, 1, &none), -ETIMEDOUT);
}

static void send_many(const char *op)
{
    _cleanup_(cJSON_Deletep) cJSON *m = message(op, "");
    ck_assert_int_eq(mf_channel_send_many(&a, m), 0);
}

/* mf_channel_send_many writes several messages at once. It delays a message unless the last write was long
 * ago or many messages are waiting. */
MF_TEST(send_many_batches)
{
    const int64_t just_now = mf_now_ms() + 3600000; /* one hour from now, so the last write is long ago */
    int n = 0;
    send_many("first");
    expect_op(&b, "first", "");
    a.written_ms = just_now;
    send_many("second");
    ck_assert(mf_channel_wants_write(&a));
    _cleanup_(cJSON_Deletep) cJSON *m = message("third", "");
    ck_assert_int_eq(mf_channel_send_wait(&a, m, -1), 0);
    expect_op(&b, "second", "");
    expect_op(&b, "third", "");
    a.written_ms = just_now;
    do {
        send_many("more");
    } while (mf_channel_wants_write(&a) && ++n < 10000);
    ck_assert_int_lt(n, 10000);
    ck_assert_int_gt(n, 100);
}

MF_TEST(one_byte_at_a_time)
{
    const char *line = "{\"op\":\"slow\",\"text\":\"t\"}\n";
    cJSON *m = NULL;
    for (size_t i = 0; line[i]; i++) {
        ck_assert_int_eq(mf_channel_next(&b, &m), 0);
        write_raw(&line[i], 1);
        ck_assert_int_eq(mf_channel_fill(&b), 0);
    }
    expect_op(&b, "slow", "t");
}

static void *write_large(void *arg)
{
    const cJSON *m = arg;
    return mf_channel_send_wait(&a, m, -1) == 0 ? NULL : &a;
}

/* The message is larger than any socket buffer, so both sides must continue partial transfers. */
MF_TEST(large_message)
{
    const size_t len = 7u << 20;
    char *text = malloc(len + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, 'y', len);
    text[len] = '\0';
    _cleanup_(cJSON_Deletep) cJSON *m = message("large", text);
    pthread_t thread;
    void *failed;
    ck_assert_int_eq(pthread_create(&thread, NULL, write_large, m), 0);
    expect_op(&b, "large", text);
    ck_assert_int_eq(pthread_join(thread, &failed), 0);
    ck_assert_ptr_null(failed);
    free(text);
}

MF_TEST(too_long_to_send)
{
    const size_t len = MF_CHANNEL_LINE_MAX;
    char *text = malloc(len + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, 'y', len);
    text[len] = '\0';
    _cleanup_(cJSON_Deletep) cJSON *m = message("large", text);
    ck_assert_int_eq(mf_channel_send(&a, m, -1), -EMSGSIZE);
    free(text);
    send_op(&a, "still", "works", -1);
    expect_op(&b, "still", "works");
}

MF_TEST(peer_does_not_read)
{
    static char text[1 << 20];
    memset(text, 'z', sizeof(text) - 1);
    _cleanup_(cJSON_Deletep) cJSON *m = message("more", text);
    int r = 0;
    for (int i = 0; i < 100 && r == 0; i++)
        r = mf_channel_send(&a, m, -1);
    ck_assert_int_eq(r, -ENOBUFS);
}

/* clang-format off */
static const char *const not_messages[] = {
    "no json\n",
    "[1,2]\n",
    "{}\n",                             /* no op */
    "{\"op\":5}\n",
    "{\"op\":\"x\"} {\"op\":\"y\"}\n",  /* two values in a line */
    "{\"op\":\"\xff\"}\n",              /* not UTF-8 */
};
/* clang-format on */

MF_TEST(invalid_lines_are_skipped, .rows = MF_ARRAY_LEN(not_messages))
{
    cJSON *m = NULL;
    write_raw(not_messages[_i], strlen(not_messages[_i]));
    write_raw("\n\n{\"op\":\"good\",\"text\":\"\"}\n", 26);
    ck_assert_int_eq(mf_channel_fill(&b), 0);
    ck_assert_int_eq(mf_channel_next(&b, &m), -EBADMSG);
    /* The invalid line is skipped; empty lines are ignored. */
    expect_op(&b, "good", "");
}

static void *write_endless(void *arg)
{
    (void)arg;
    static char bytes[1 << 16];
    memset(bytes, 'e', sizeof(bytes));
    while (send(a.fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

MF_TEST(endless_line)
{
    pthread_t thread;
    cJSON *m = NULL;
    ck_assert_int_eq(pthread_create(&thread, NULL, write_endless, NULL), 0);
    ck_assert_int_eq(mf_channel_wait(&b, 20000, &m), -EMSGSIZE);
    ck_assert_uint_le(b.in.cap, 2 * (b.in.max + 1));
    ck_assert_int_eq(shutdown(b.fd, SHUT_RDWR), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

MF_TEST(closed_by_the_peer)
{
    cJSON *m = NULL;
    send_op(&a, "last", "words", -1);
    (void)shutdown(a.fd, SHUT_RDWR);
    expect_op(&b, "last", "words");
    ck_assert_int_eq(mf_channel_wait(&b, 5000, &m), 0);
    ck_assert(b.eof);
    _cleanup_(cJSON_Deletep) cJSON *late = message("late", "");
    ck_assert_int_eq(mf_channel_send(&b, late, -1), -EPIPE);
}

static int memory_of(const char *text)
{
    int fd;
    ck_assert_int_eq(mf_memory_file("test", 4096, &fd), 0);
    ck_assert_int_eq(pwrite(fd, text, strlen(text), 0), (ssize_t)strlen(text));
    return fd;
}

static void expect_content(int fd, const char *text)
{
    char got[64] = "";
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_ge(pread(fd, got, sizeof(got) - 1, 0), 0);
    ck_assert_str_eq(got, text);
}

/* Descriptors arrive in the order of their messages, even if one read also returns messages without
 * descriptors. */
MF_TEST(descriptors)
{
    for (int i = 0; i < 20; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "file %d", i);
        int fd = memory_of(text);
        send_op(&a, "plain", text, -1);
        send_op(&a, "file", text, fd);
        (void)close(fd);
    }
    for (int i = 0; i < 20; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "file %d", i);
        expect_op(&b, "plain", text);
        expect_op(&b, "file", text);
        int fd = mf_channel_take_fd(&b);
        expect_content(fd, text);
        (void)close(fd);
    }
    ck_assert_int_eq(mf_channel_take_fd(&b), -1);
}

/* The sender queues more descriptors than the receiver holds at a time, as a worker does that sends all kept
 * files to a new runner. */
MF_TEST(more_descriptors_than_the_limit)
{
    for (int i = 0; i < 2 * MF_CHANNEL_FDS_MAX; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "file %d", i);
        int fd = memory_of(text);
        _cleanup_(cJSON_Deletep) cJSON *m = message("file", text);
        ck_assert_int_eq(mf_channel_send(&a, m, fd), 0);
        (void)close(fd);
    }
    ck_assert_int_eq(mf_channel_fill(&b), 0);
    for (int i = 0; i < 2 * MF_CHANNEL_FDS_MAX; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "file %d", i);
        ck_assert_int_ge(mf_channel_flush(&a), 0);
        expect_op(&b, "file", text);
        int fd = mf_channel_take_fd(&b);
        expect_content(fd, text);
        (void)close(fd);
    }
}

/* The receiver does not take the descriptors of its messages. */
MF_TEST(descriptors_are_not_taken)
{
    int fd = memory_of("x");
    for (int i = 0; i < MF_CHANNEL_FDS_MAX; i++)
        send_op(&a, "file", "", fd);
    (void)close(fd);
    for (int i = 0; i < MF_CHANNEL_FDS_MAX; i++)
        expect_op(&b, "file", "");
    cJSON *none = NULL;
    ck_assert_int_eq(mf_channel_next(&b, &none), -EPROTO);
}

/* ---- memfd_store ---- */

static int sealed(size_t bytes)
{
    int fd;
    ck_assert_int_eq(mf_memory_file("kept", bytes, &fd), 0);
    ck_assert_int_eq(mf_memory_seal(fd), 0);
    return fd;
}

static const struct mf_test_group memfd_store_tests = {.setup = setup, .teardown = teardown};

MF_TEST(runner_passes_files_to_worker, .group = &memfd_store_tests)
{
    struct mf_runner_memfd_store k;
    uint64_t bytes = 0;
    mf_runner_memfd_store_init(&k, &a, 4096);
    ck_assert_int_eq(k.local.memfd_store.find(&k.local.memfd_store, "w1", &bytes), -1);
    ck_assert_int_eq(k.local.memfd_store.keep(&k.local.memfd_store, "w1", sealed(4096), 4096), 0);
    ck_assert_int_ge(k.local.memfd_store.find(&k.local.memfd_store, "w1", &bytes), 0);
    ck_assert_uint_eq(bytes, 4096);
    /* There is no space for both files, so the runner tells the worker to drop the first file. */
    ck_assert_int_eq(k.local.memfd_store.keep(&k.local.memfd_store, "w2", sealed(4096), 4096), 0);
    static const char *const expected[] = {"keep", "drop", "keep"};
    for (size_t i = 0; i < MF_ARRAY_LEN(expected); i++) {
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        ck_assert_int_eq(mf_channel_wait(&b, 5000, &m), 1);
        ck_assert_str_eq(mf_channel_op(m), expected[i]);
    }
    int fd = mf_channel_take_fd(&b);
    ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    (void)close(fd);
    mf_runner_memfd_store_release(&k);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = setup, .teardown = teardown});
}
