/* Events on their way from the writing thread to whoever listens: what a full listener misses, it hears of. */
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "server/farm/bus.h"
#include "server/farm/farm_private.h"
#include "support/mf_check.h"

static void tell(struct mf_farm *f, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        f->told[i] = (struct mf_event){.id = first + i, .batch = 1, .kind = "task", .body = strdup("{}")};
    f->n_told = (size_t)n;
    mf_events_publish(f);
    ck_assert_uint_eq(f->n_told, 0);
}

/* The last id that is there to be heard; 0: none. */
static int64_t hear(void *sub, int64_t *ret_n)
{
    struct mf_bus_event e;
    int64_t last = 0;
    for (*ret_n = 0; mf_bus_recv_event(sub, &e) == 1; ++*ret_n) {
        last = e.id;
        free(e.body);
    }
    return last;
}

/* Turns without anything new, until something is heard. */
static int64_t hear_later(struct mf_farm *f, void *sub, int64_t *ret_n)
{
    int64_t last, until = mf_now_ms() + 10000;
    while ((last = hear(sub, ret_n)) == 0 && mf_now_ms() < until)
        mf_events_publish(f);
    return last;
}

/* A burst of which the listener has room for a part; the next turn has nothing new, and it hears of the last event all the same. */
START_TEST(full)
{
    enum { N = 1000, ROOM = 10 };
    void *zmq = zmq_ctx_new(), *pub = zmq_socket(zmq, ZMQ_PUB), *sub = zmq_socket(zmq, ZMQ_SUB);
    struct mf_event told[N];
    struct mf_farm f = {.events = pub, .told = told};
    int64_t n;

    ck_assert_int_eq(mf_bus_tells_full(pub), 0);
    ck_assert_int_eq(zmq_setsockopt(pub, ZMQ_SNDHWM, &(int){ROOM}, sizeof(int)), 0);
    ck_assert_int_eq(zmq_setsockopt(sub, ZMQ_RCVHWM, &(int){ROOM}, sizeof(int)), 0);
    ck_assert_int_eq(zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0), 0);
    ck_assert_int_eq(zmq_bind(pub, MF_BUS_EVENTS), 0);
    ck_assert_int_eq(zmq_connect(sub, MF_BUS_EVENTS), 0);
    /* until the subscription has come to the publisher, which looks for it when it sends */
    for (int64_t id = 1; hear(sub, &n) == 0; id++)
        tell(&f, id, 1);
    (void)hear(sub, &n);

    tell(&f, 10000, N);
    ck_assert_int_lt(hear(sub, &n), 10000 + N - 1);
    ck_assert_int_le(n, 2 * ROOM);
    ck_assert_int_eq(hear_later(&f, sub, &n), 10000 + N - 1);
    ck_assert_int_eq(n, 1);
    ck_assert_ptr_null(f.no_completion_signal.body);
    /* one that is new is sent in place of one that found no room */
    tell(&f, 20000, N);
    tell(&f, 21000, 1);
    ck_assert_int_eq(f.no_completion_signal.id, 21000);
    (void)hear(sub, &n);
    ck_assert_int_eq(hear_later(&f, sub, &n), 21000);
    ck_assert_int_eq(n, 1);
    (void)zmq_close(sub);
    (void)zmq_close(pub);
    (void)zmq_ctx_term(zmq);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("event");
    TCase *t = tcase_create("publish");
    tcase_add_test(t, full);
    suite_add_tcase(suite, t);
    return mf_check_main(suite);
}
