/* A read waits for a free reader, not for a particular reader. The test replaces the HTTP end of the bus and
 * the routes. */
#include "server/http/reader.h"

#include "support/mf_check.h"
#include "support/remove_tree.h"

#include "common/base/cleanup.h"
#include "server/api/routes.h"
#include "server/farm/bus.h"
#include "server/http/request.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define N_READERS  2
#define N_QUICK    64
#define TIMEOUT_MS 20000

static char folder[64], path[100];
static void *zmq, *reads, *replies;
static struct mf_readers *readers;
static int held_fd, go_fd; /* a slow read increments held_fd and then waits for go_fd */

static int answer_slowly(void *reader, struct mf_request *r)
{
    uint64_t one = 1;
    (void)reader;
    ck_assert_int_eq(write(held_fd, &one, sizeof(one)), sizeof(one));
    ck_assert_int_eq(read(go_fd, &one, sizeof(one)), sizeof(one));
    r->response.status = 200;
    return 0;
}

static int answer_at_once(void *reader, struct mf_request *r)
{
    (void)reader;
    r->response.status = 200;
    return 0;
}

static const struct mf_route slow = {.path = "/slow", .hops = {{MF_OWNER_READER, answer_slowly, false}}};
static const struct mf_route quick = {.path = "/quick", .hops = {{MF_OWNER_READER, answer_at_once, false}}};

static void make_store(void)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    (void)snprintf(folder, sizeof(folder), "/tmp/check_reader.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/farm.db", folder);
    ck_assert_int_eq(mf_store_open(path, &s), 0);
}

/* As in moefarmd, the readers start before the HTTP thread binds its sockets. At most n_waiting reads wait at
 * the HTTP end of the bus. */
static void start(int n_waiting)
{
    int linger = 0;
    zmq = zmq_ctx_new();
    ck_assert_int_eq(mf_readers_start(zmq, path, N_READERS, &readers), 0);
    reads = zmq_socket(zmq, ZMQ_PUSH);
    replies = zmq_socket(zmq, ZMQ_PULL);
    ck_assert_int_eq(zmq_setsockopt(reads, ZMQ_SNDHWM, &n_waiting, sizeof(n_waiting)), 0);
    ck_assert_int_eq(zmq_setsockopt(reads, ZMQ_LINGER, &linger, sizeof(linger)), 0);
    ck_assert_int_eq(zmq_bind(reads, MF_BUS_READS), 0);
    ck_assert_int_eq(zmq_bind(replies, MF_BUS_REPLIES), 0);
}

static void setup(void)
{
    make_store();
    held_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    go_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    ck_assert(held_fd >= 0 && go_fd >= 0);
}

static void stop(void)
{
    struct mf_request *r;
    readers = mf_readers_stop(readers);
    while (mf_bus_recv_pointer(replies, &r) > 0)
        (void)mf_request_free(r);
    (void)zmq_close(reads);
    (void)zmq_close(replies);
    (void)zmq_ctx_term(zmq);
}

static void teardown(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
    (void)close(held_fd);
    (void)close(go_fd);
}

static int send_read(const struct mf_route *route, int64_t number)
{
    struct mf_request *r = mf_request_new();
    ck_assert_ptr_nonnull(r);
    r->route = route;
    r->path_id[0] = number;
    int e = mf_bus_send_pointer(reads, r);
    if (e < 0)
        (void)mf_request_free(r);
    return e;
}

/* Sends n slow reads. Each of them occupies a reader. */
static void start_slow(int n)
{
    uint64_t one;
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(send_read(&slow, -1), 0);
        ck_assert_int_eq(read(held_fd, &one, sizeof(one)), sizeof(one));
    }
}

static void release_slow(uint64_t n)
{
    ck_assert_int_eq(write(go_fd, &n, sizeof(n)), sizeof(n));
}

/* Returns the number of the next read that is answered. */
static int64_t next_answer(void)
{
    struct mf_request *r;
    zmq_pollitem_t item = {replies, 0, ZMQ_POLLIN, 0};
    ck_assert_msg(zmq_poll(&item, 1, TIMEOUT_MS) == 1, "no answer within the timeout");
    ck_assert_int_eq(mf_bus_recv_pointer(replies, &r), 1);
    ck_assert_int_eq(r->response.status, 200);
    int64_t number = r->path_id[0];
    (void)mf_request_free(r);
    return number;
}

static void send_quick(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(send_read(&quick, i), 0);
}

/* Asserts that n quick reads are answered, in order. */
static void expect_quick(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(next_answer(), i);
}

/* Lets n slow reads finish and receives their answers. */
static void end_slow(int n)
{
    release_slow((uint64_t)n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(next_answer(), -1);
}

/* While one reader is free, slow reads in the other readers do not delay any read, and reads are answered in
 * order. */
MF_TEST(test_slow_reads_delay_no_other)
{
    start(1000);
    start_slow(N_READERS - 1);
    send_quick(N_QUICK);
    expect_quick(N_QUICK);
    end_slow(N_READERS - 1);
    stop();
}

/* While all readers are busy, reads wait. The reader that becomes free first takes all waiting reads. */
MF_TEST(test_first_free_reader_takes_all)
{
    start(1000);
    start_slow(N_READERS);
    send_quick(N_QUICK);
    end_slow(1);
    expect_quick(N_QUICK);
    end_slow(N_READERS - 1);
    stop();
}

/* The maximum number of waiting reads is the length of the queue at the HTTP end of the bus, plus one read at
 * the readers' end, minus the reads that the HTTP end still counts as queued. Stopping frees the reads that
 * no reader took. */
MF_TEST(test_waiting_reads_are_limited)
{
    enum { LIMIT = 1000 };
    int n = 0, e;
    start(LIMIT);
    start_slow(N_READERS);
    while ((e = send_read(&quick, n)) == 0)
        n++;
    ck_assert_int_eq(e, -EAGAIN);
    ck_assert_msg(n >= LIMIT + 1 - N_READERS && n <= LIMIT + 1, "%d reads wait", n);
    release_slow(N_READERS);
    stop();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = setup, .teardown = teardown});
}
