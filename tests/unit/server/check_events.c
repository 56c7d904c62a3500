#include "server/farm/bus.h"
#include "server/http/events.h"
#include "support/mf_check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void push(struct mf_events *e, int64_t id, int64_t batch, const char *body)
{
    struct mf_bus_event event = {.id = id, .batch = batch, .kind = "task", .body = (char *)body};
    (void)mf_events_push(e, &event);
}

/* Reads the events after the cursor. Returns their ids as text, such as "3 4 ". */
static const char *ids(struct mf_events *e, int64_t batch, int64_t *cursor, int expect)
{
    static char list[512];
    struct mf_buf out;
    list[0] = 0;
    mf_buf_init(&out, 1 << 20);
    ck_assert_int_eq(mf_events_read(e, batch, cursor, &out, 1 << 16), expect);
    for (const char *p = out.data; (p = strstr(p, "id: ")); p += 4)
        (void)snprintf(list + strlen(list), sizeof(list) - strlen(list), "%.*s ", (int)strcspn(p + 4, "\n"),
                       p + 4);
    mf_buf_release(&out);
    return list;
}

MF_TEST(test_text)
{
    struct mf_buf out;
    mf_buf_init(&out, 1000);
    /* A line end in the data would end the event early. */
    ck_assert_int_eq(mf_event_format(&out, 7, "task", "{\"a\":\n\"b\r\"}"), 0);
    ck_assert_str_eq(out.data, "id: 7\nevent: task\ndata: {\"a\": \"b \"}\n\n");
    mf_buf_release(&out);
}

MF_TEST(test_cursors)
{
    _cleanup_(mf_events_freep) struct mf_events *e = NULL;
    int64_t all = 10, one = 10, late = 9;
    ck_assert_int_eq(mf_events_new(8, 4096, &e), 0);
    ck_assert_str_eq(ids(e, 0, &all, 0), "");
    for (int i = 11; i <= 14; i++)
        push(e, i, i % 2 ? 1 : 2, "{}");
    ck_assert_str_eq(ids(e, 0, &all, 0), "11 12 13 14 ");
    ck_assert_str_eq(ids(e, 2, &one, 0), "12 14 ");
    ck_assert_str_eq(ids(e, 2, &one, 0), "");
    /* event 10 was never in the ring buffer */
    ck_assert_str_eq(ids(e, 0, &late, -ESTALE), "");
    ck_assert_int_eq(late, 9);
    push(e, 13, 1, "{}");
    ck_assert_str_eq(ids(e, 0, &all, 0), "");
}

/* Events of other batches advance the cursor, too, because otherwise the stream would fall behind the ring
 * buffer. */
MF_TEST(test_events_of_other_batches)
{
    _cleanup_(mf_events_freep) struct mf_events *e = NULL;
    int64_t cursor = 0;
    ck_assert_int_eq(mf_events_new(4, 4096, &e), 0);
    for (int i = 1; i <= 40; i++) {
        push(e, i, 1, "{}");
        ck_assert_str_eq(ids(e, 2, &cursor, 0), "");
        ck_assert_int_eq(cursor, i);
    }
}

MF_TEST(test_limits)
{
    _cleanup_(mf_events_freep) struct mf_events *e = NULL;
    char large[600];
    int64_t cursor = 0, behind;
    memset(large, 'x', sizeof(large) - 1);
    large[sizeof(large) - 1] = 0;
    ck_assert_int_eq(mf_events_new(3, 500, &e), 0);
    for (int i = 1; i <= 5; i++)
        push(e, i, 0, "{}");
    ck_assert_str_eq(ids(e, 0, &cursor, -ESTALE), "");
    cursor = 2;
    ck_assert_str_eq(ids(e, 0, &cursor, 0), "3 4 5 ");
    /* an event larger than the ring buffer is in the database only */
    push(e, 6, 0, large);
    behind = 5;
    ck_assert_str_eq(ids(e, 0, &behind, -ESTALE), "");
    behind = 6;
    ck_assert_str_eq(ids(e, 0, &behind, 0), "");
    push(e, 7, 0, "{}");
    ck_assert_str_eq(ids(e, 0, &behind, 0), "7 ");
}

MF_TEST(test_gap)
{
    _cleanup_(mf_events_freep) struct mf_events *e = NULL;
    int64_t cursor = 2;
    ck_assert_int_eq(mf_events_new(8, 4096, &e), 0);
    push(e, 1, 0, "{}");
    push(e, 2, 0, "{}");
    push(e, 5, 0, "{}");
    ck_assert_str_eq(ids(e, 0, &cursor, -ESTALE), "");
    cursor = 4;
    ck_assert_str_eq(ids(e, 0, &cursor, 0), "5 ");
}

int main(void)
{
    return mf_check_main(NULL);
}
