/* Reads wait for a reader, not for one another: the bus's HTTP end is the test's, and so are the routes. */
#include "server/http/reader.h"

#include "support/mf_check.h"

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

#define N_READERS   2
#define N_QUICK     64
#define PATIENCE_MS 20000

static char folder[64], path[100];
static void *zmq, *reads, *replies;
static struct mf_readers *readers;
static int held_fd, go_fd; /* a slow read counts itself in one and waits for the other */

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

static const struct mf_route slow = {.path = "/slow", .hops = {{MF_OWNER_READER, answer_slowly}}};
static const struct mf_route quick = {.path = "/quick", .hops = {{MF_OWNER_READER, answer_at_once}}};

static void make_store(void)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    (void)snprintf(folder, sizeof(folder), "/tmp/check_reader.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/farm.db", folder);
    ck_assert_int_eq(mf_store_open(path, &s), 0);
}

/* In moefarmd's order: readers are there before the HTTP thread binds. At most n_waiting reads wait at its end of the bus. */
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
    while (mf_bus_take(replies, &r) > 0)
        (void)mf_request_free(r);
    (void)zmq_close(reads);
    (void)zmq_close(replies);
    (void)zmq_ctx_term(zmq);
}

static void teardown(void)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < MF_ARRAY_LEN(ends); i++) {
        char file[120];
        (void)snprintf(file, sizeof(file), "%s%s", path, ends[i]);
        (void)unlink(file);
    }
    (void)rmdir(folder);
    (void)close(held_fd);
    (void)close(go_fd);
}

static int give(const struct mf_route *route, int64_t number)
{
    struct mf_request *r = mf_request_new();
    ck_assert_ptr_nonnull(r);
    r->route = route;
    r->path_id[0] = number;
    int e = mf_bus_give(reads, r);
    if (e < 0)
        (void)mf_request_free(r);
    return e;
}

/* n slow reads, each in a reader's hands. */
static void hold(int n)
{
    uint64_t one;
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(give(&slow, -1), 0);
        ck_assert_int_eq(read(held_fd, &one, sizeof(one)), sizeof(one));
    }
}

static void let_go(uint64_t n)
{
    ck_assert_int_eq(write(go_fd, &n, sizeof(n)), sizeof(n));
}

/* The number of the read that is answered next. */
static int64_t next_answer(void)
{
    struct mf_request *r;
    zmq_pollitem_t item = {replies, 0, ZMQ_POLLIN, 0};
    ck_assert_msg(zmq_poll(&item, 1, PATIENCE_MS) == 1, "no answer comes");
    ck_assert_int_eq(mf_bus_take(replies, &r), 1);
    ck_assert_int_eq(r->response.status, 200);
    int64_t number = r->path_id[0];
    (void)mf_request_free(r);
    return number;
}

static void give_quick(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(give(&quick, i), 0);
}

/* Of n quick reads, in their order. */
static void hear_quick(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(next_answer(), i);
}

/* n slow reads end. */
static void end_slow(int n)
{
    let_go((uint64_t)n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(next_answer(), -1);
}

/* As long as one reader is free, the others' slow reads hold up none, and who came first is first. */
START_TEST(test_slow_read_holds_up_no_other)
{
    start(1000);
    hold(N_READERS - 1);
    give_quick(N_QUICK);
    hear_quick(N_QUICK);
    end_slow(N_READERS - 1);
    stop();
}
END_TEST

/* While all are busy reads wait, and the first reader that is free takes them all, whichever it is. */
START_TEST(test_first_free_reader_takes_what_waits)
{
    start(1000);
    hold(N_READERS);
    give_quick(N_QUICK);
    end_slow(1);
    hear_quick(N_QUICK);
    end_slow(N_READERS - 1);
    stop();
}
END_TEST

/* No more wait than the HTTP thread's end of the bus holds and one at the readers', less those of which it has not heard yet that they
 * were taken. A stop frees what nobody took. */
START_TEST(test_waiting_are_bounded)
{
    enum { CEILING = 1000 };
    int n = 0, e;
    start(CEILING);
    hold(N_READERS);
    while ((e = give(&quick, n)) == 0)
        n++;
    ck_assert_int_eq(e, -EAGAIN);
    ck_assert_msg(n >= CEILING + 1 - N_READERS && n <= CEILING + 1, "%d wait", n);
    let_go(N_READERS);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reader");
    TCase *t = tcase_create("reader");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, test_slow_read_holds_up_no_other);
    tcase_add_test(t, test_first_free_reader_takes_what_waits);
    tcase_add_test(t, test_waiting_are_bounded);
    suite_add_tcase(suite, t);
    return mf_check_main(suite);
}
