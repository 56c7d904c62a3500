/* Events from the writer thread to subscribers: a subscriber whose queue was full still receives the last
 * event. */
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "server/farm/bus.h"
#include "server/farm/farm_private.h"
#include "support/mf_check.h"

static void publish_events(struct mf_farm *f, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        f->new_events[i] =
            (struct mf_event){.id = first + i, .batch = 1, .kind = "task", .body = strdup("{}")};
    f->n_new_events = (size_t)n;
    mf_events_publish(f);
    ck_assert_uint_eq(f->n_new_events, 0);
}

/* Receives all waiting events. Returns the id of the last event, or 0 if no event was waiting. */
static int64_t receive(void *sub, int64_t *ret_n)
{
    struct mf_bus_event e;
    int64_t last = 0;
    for (*ret_n = 0; mf_bus_recv_event(sub, &e) == 1; ++*ret_n) {
        last = e.id;
        free(e.body);
    }
    return last;
}

/* Publishes without new events until an event arrives. */
static int64_t receive_later(struct mf_farm *f, void *sub, int64_t *ret_n)
{
    int64_t last, until = mf_now_ms() + 10000;
    while ((last = receive(sub, ret_n)) == 0 && mf_now_ms() < until)
        mf_events_publish(f);
    return last;
}

/* A burst of events exceeds the subscriber's queue. The next iteration has no new event, but it sends the
 * last event of the burst again. */
MF_TEST(full_queue)
{
    enum { N = 1000, ROOM = 10 };
    void *zmq = zmq_ctx_new(), *pub = zmq_socket(zmq, ZMQ_PUB), *sub = zmq_socket(zmq, ZMQ_SUB);
    struct mf_event events[N];
    struct mf_farm f = {.events = pub, .new_events = events};
    int64_t n;

    ck_assert_int_eq(mf_bus_set_no_drop(pub), 0);
    ck_assert_int_eq(zmq_setsockopt(pub, ZMQ_SNDHWM, &(int){ROOM}, sizeof(int)), 0);
    ck_assert_int_eq(zmq_setsockopt(sub, ZMQ_RCVHWM, &(int){ROOM}, sizeof(int)), 0);
    ck_assert_int_eq(zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0), 0);
    ck_assert_int_eq(zmq_bind(pub, MF_BUS_EVENTS), 0);
    ck_assert_int_eq(zmq_connect(sub, MF_BUS_EVENTS), 0);
    /* the publisher reads the subscription only when it sends, so publish events until one arrives */
    for (int64_t id = 1; receive(sub, &n) == 0; id++)
        publish_events(&f, id, 1);
    (void)receive(sub, &n);

    publish_events(&f, 10000, N);
    ck_assert_int_lt(receive(sub, &n), 10000 + N - 1);
    ck_assert_int_le(n, 2 * ROOM);
    ck_assert_int_eq(receive_later(&f, sub, &n), 10000 + N - 1);
    ck_assert_int_eq(n, 1);
    ck_assert_ptr_null(f.unsent_event.body);
    /* a new event replaces the unsent event, for which the queue had no space */
    publish_events(&f, 20000, N);
    publish_events(&f, 21000, 1);
    ck_assert_int_eq(f.unsent_event.id, 21000);
    (void)receive(sub, &n);
    ck_assert_int_eq(receive_later(&f, sub, &n), 21000);
    ck_assert_int_eq(n, 1);
    (void)zmq_close(sub);
    (void)zmq_close(pub);
    (void)zmq_ctx_term(zmq);
}

int main(void)
{
    return mf_check_main(NULL);
}
