/* The hub and its mailroom. DEALER sockets in this process connect to it over TCP. */
#include "server/link/hub.h"

#include "support/mf_check.h"

#include "common/base/array.h"
#include "support/no_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define WAIT_MS     20000
#define BEYOND_MS   300  /* time to wait for a message that must not arrive because of a limit */
#define PENDING_MAX 1024 /* same value as in server/link/mailroom.c */
#define MIB         (1u << 20)

struct post_office {
    void *zmq, *dealer;
    struct mf_hub *hub;
};

static struct post_office open_office(void)
{
    struct post_office o = {.zmq = zmq_ctx_new()};
    ck_assert_int_eq(mf_hub_new(o.zmq, "tcp://127.0.0.1:*", NULL, &o.hub), 0);
    o.dealer = zmq_socket(o.zmq, ZMQ_DEALER);
    int zero = 0;
    ck_assert_int_eq(zmq_setsockopt(o.dealer, ZMQ_LINGER, &zero, sizeof(zero)), 0);
    ck_assert_int_eq(zmq_connect(o.dealer, mf_hub_endpoint(o.hub)), 0);
    return o;
}

static void close_office(struct post_office *o)
{
    mf_hub_free(o->hub);
    ck_assert_int_eq(zmq_close(o->dealer), 0);
    ck_assert_int_eq(zmq_ctx_term(o->zmq), 0);
}

static void send_message(const struct post_office *o, enum mf_message type, uint64_t sequence,
                         const void *body, size_t len)
{
    uint8_t header[MF_WIRE_HEADER_SIZE];
    mf_wire_encode(&(struct mf_wire_header){.type = type, .sequence = sequence}, header);
    ck_assert_int_ge(zmq_send(o->dealer, header, sizeof(header), ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(o->dealer, body, len, 0), 0);
}

/* Returns the hub's next message, or NULL after a timeout. */
static const struct mf_mail *next_mail(const struct post_office *o, long wait_ms)
{
    const struct mf_mail *mail;
    zmq_pollitem_t item = {.socket = mf_hub_socket(o->hub), .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, wait_ms) <= 0)
        return NULL;
    ck_assert_int_eq(mf_hub_recv(o->hub, &mail), 1);
    return mail;
}

static void reply(const struct post_office *o, const struct mf_mail *mail, const char *body)
{
    ck_assert_int_eq(mf_hub_post(o->hub, &mail->peer, MF_MESSAGE_ACK, body), 0);
}

/* Welcomes the peer, so that the front lets it send long messages. */
static void welcome(const struct post_office *o)
{
    uint8_t frame[64];
    send_message(o, MF_MESSAGE_HELLO, 0, "{}", 2);
    const struct mf_mail *mail = next_mail(o, WAIT_MS);
    ck_assert_ptr_nonnull(mail);
    ck_assert_int_eq(mf_hub_post(o->hub, &mail->peer, MF_MESSAGE_WELCOME, "{}"), 0);
    mf_hub_flush(o->hub);
    ck_assert_int_eq(zmq_recv(o->dealer, frame, sizeof(frame), 0), MF_WIRE_HEADER_SIZE);
    ck_assert_int_eq(zmq_recv(o->dealer, frame, sizeof(frame), 0), 2);
}

/* Asserts that the next message from the hub has this body. */
static void expect_reply(const struct post_office *o, const char *body)
{
    char text[64];
    uint8_t bytes[MF_WIRE_HEADER_SIZE];
    struct mf_wire_header header;
    int version, n;
    zmq_pollitem_t item = {.socket = o->dealer, .events = ZMQ_POLLIN};
    ck_assert_int_eq(zmq_poll(&item, 1, WAIT_MS), 1);
    ck_assert_int_eq(zmq_recv(o->dealer, bytes, sizeof(bytes), 0), MF_WIRE_HEADER_SIZE);
    ck_assert_int_eq(mf_wire_decode(bytes, sizeof(bytes), &header, &version), 0);
    ck_assert_int_eq(header.type, MF_MESSAGE_ACK);
    n = zmq_recv(o->dealer, text, sizeof(text), 0);
    ck_assert_int_eq(n, (int)strlen(body));
    ck_assert_mem_eq(text, body, strlen(body));
}

MF_TEST(receives_and_replies)
{
    struct post_office o = open_office();
    send_message(&o, MF_MESSAGE_READY, 7, "{\"credit\":1}", 12);
    const struct mf_mail *mail = next_mail(&o, WAIT_MS);
    ck_assert_ptr_nonnull(mail);
    ck_assert_int_eq(mail->error, 0);
    ck_assert_int_eq(mail->type, MF_MESSAGE_READY);
    ck_assert_uint_eq(mail->sequence, 7);
    ck_assert_uint_eq(mail->body_len, 12);
    ck_assert_double_eq(cJSON_GetObjectItem(mail->json, "credit")->valuedouble, 1);
    ck_assert_str_eq(mail->peer.user, "");
    reply(&o, mail, "undone");
    mf_hub_drop(o.hub); /* the transaction failed, so its replies must not be sent */
    send_message(&o, MF_MESSAGE_READY, 8, "{\"credit\":2}", 12);
    mail = next_mail(&o, WAIT_MS);
    ck_assert_ptr_nonnull(mail);
    reply(&o, mail, "first");
    reply(&o, mail, "second");
    mf_hub_flush(o.hub);
    expect_reply(&o, "first");
    expect_reply(&o, "second");
    close_office(&o);
}

/* An invalid message is delivered with its error and its peer. The message after it is read as usual. */
MF_TEST(invalid_messages_are_reported)
{
    static const char good[] = "MF\x01\x01\0\0\0\0\x05\0\0\0\0\0\0\0",
                      other[] = "MF\x09\x01\0\0\0\0\x05\0\0\0\0\0\0\0";
    static const struct {
        const char *frames[4];
        int sizes[4];
        int error, version;
        bool json;
    } cases[] = {
        {{good, "{}"}, {16, 2}, 0, MF_WIRE_VERSION, true},
        {{good, "[1"}, {16, 2}, 0, MF_WIRE_VERSION, false},
        {{good, ""}, {16, 0}, 0, MF_WIRE_VERSION, false},
        {{good}, {16}, -EBADMSG, MF_WIRE_VERSION, false},
        {{"MF"}, {2}, -EBADMSG, 0, false},
        {{"MF", "{}"}, {2, 2}, -EBADMSG, 0, false},
        {{"", "{}"}, {0, 2}, -EBADMSG, 0, false},
        {{"a header of more than 16", "{}"}, {24, 2}, -EBADMSG, 0, false},
        {{good, "{}", "more"}, {16, 2, 4}, -EBADMSG, MF_WIRE_VERSION, false},
        {{good, "{}", "more", "and more"}, {16, 2, 4, 8}, -EBADMSG, MF_WIRE_VERSION, false},
        {{other, "{}"}, {16, 2}, -EPROTONOSUPPORT, 9, false},
        {{other, "{}", "more"}, {16, 2, 4}, -EPROTONOSUPPORT, 9, false},
    };
    struct post_office o = open_office();
    for (size_t i = 0; i < MF_ARRAY_LEN(cases); i++) {
        for (int k = 0; k < 4 && cases[i].frames[k]; k++)
            ck_assert_int_ge(zmq_send(o.dealer, cases[i].frames[k], (size_t)cases[i].sizes[k],
                                      k < 3 && cases[i].frames[k + 1] ? ZMQ_SNDMORE : 0),
                             0);
        send_message(&o, MF_MESSAGE_BEAT, i, "{}", 2);
        const struct mf_mail *mail = next_mail(&o, WAIT_MS);
        ck_assert_ptr_nonnull(mail);
        ck_assert_msg(mail->error == cases[i].error, "case %zu: error %d", i, mail->error);
        if (cases[i].version)
            ck_assert_int_eq(mail->version, cases[i].version);
        ck_assert_msg(cJSON_IsObject(mail->json) == cases[i].json, "case %zu", i);
        reply(&o, mail, "none");
        mail = next_mail(&o, WAIT_MS);
        ck_assert_ptr_nonnull(mail);
        ck_assert_int_eq(mail->error, 0);
        ck_assert_uint_eq(mail->sequence, i);
        mf_hub_flush(o.hub);
        expect_reply(&o, "none");
    }
    close_office(&o);
}

/* If memory for a message is missing, the message is not reported as invalid, because its sender may send it
 * again. */
MF_TEST(lack_of_memory_is_reported)
{
    struct post_office o = open_office();
    fail_allocation(0);
    send_message(&o, MF_MESSAGE_READY, 7, "{\"credit\":1}", 12);
    const struct mf_mail *mail = next_mail(&o, WAIT_MS);
    restore_allocation();
    ck_assert_ptr_nonnull(mail);
    ck_assert_int_eq(mail->error, -ENOBUFS);
    ck_assert_ptr_null(mail->json);
    ck_assert_uint_eq(mail->body_len, 12);
    reply(&o, mail, "again");
    mf_hub_flush(o.hub);
    expect_reply(&o, "again");
    send_message(&o, MF_MESSAGE_READY, 8, "{\"credit\":1}", 12);
    mail = next_mail(&o, WAIT_MS);
    ck_assert_ptr_nonnull(mail);
    ck_assert_int_eq(mail->error, 0);
    close_office(&o);
}

/* The number and the memory of messages that the writer has not returned are limited. After parsing, a body
 * with many small values takes many times its size. */
static const struct {
    size_t n, len, max_held;
    const char *fill; /* two bytes that are repeated between "[ " and "]" */
} floods[] = {
    {PENDING_MAX + 300, 4, PENDING_MAX, "  "},
    {80, MIB, 48, "  "},
    {16, MIB / 4, 6, "1,"}, /* the last one may exceed the limit of 48 MiB */
};

static char *make_body(size_t len, const char *fill)
{
    char *body = malloc(len);
    ck_assert_ptr_nonnull(body);
    memcpy(body, "[ ", 2);
    for (size_t i = 2; i < len; i++)
        body[i] = fill[i % 2];
    body[len - 1] = ']';
    return body;
}

MF_TEST(held_messages_are_limited, .rows = MF_ARRAY_LEN(floods))
{
    const size_t n = floods[_i].n, len = floods[_i].len;
    struct post_office o = open_office();
    welcome(&o);
    char *body = make_body(len, floods[_i].fill);
    for (size_t i = 0; i < n; i++)
        send_message(&o, MF_MESSAGE_BEAT, i, body, len);
    size_t n_received = 0;
    while (n_received < n) {
        size_t before = n_received;
        const struct mf_mail *mail = next_mail(&o, WAIT_MS);
        for (; mail; mail = n_received - before < floods[_i].max_held ? next_mail(&o, WAIT_MS)
                                                                      : next_mail(&o, BEYOND_MS)) {
            ck_assert_uint_eq(mail->sequence, n_received);
            ck_assert_int_eq(mail->error, 0);
            ck_assert(cJSON_IsArray(mail->json));
            if (++n_received == n)
                break;
        }
        ck_assert_uint_gt(n_received, before);
        ck_assert_uint_le(n_received - before, floods[_i].max_held);
        mf_hub_flush(o.hub);
    }
    free(body);
    close_office(&o);
}

/* A body whose values take too much memory is not parsed. */
MF_TEST(too_many_values)
{
    struct post_office o = open_office();
    welcome(&o);
    char *body = make_body(MIB, "1,");
    send_message(&o, MF_MESSAGE_BEAT, 7, body, MIB);
    const struct mf_mail *mail = next_mail(&o, WAIT_MS);
    ck_assert_ptr_nonnull(mail);
    ck_assert_int_eq(mail->error, -E2BIG);
    ck_assert_ptr_null(mail->json);
    ck_assert_uint_eq(mail->body_len, MIB);
    free(body);
    close_office(&o);
}

/* Freeing the hub also frees unread messages, unreturned messages and unsent replies. */
MF_TEST(free_with_pending_messages)
{
    struct post_office o = open_office();
    for (int i = 0; i < 100; i++)
        send_message(&o, MF_MESSAGE_BEAT, (uint64_t)i, "{\"a\":[1,2,3]}", 13);
    const struct mf_mail *mail = next_mail(&o, WAIT_MS);
    ck_assert_ptr_nonnull(mail);
    reply(&o, mail, "late");
    close_office(&o);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
