/* Fuzzes the messages of a runner, which may be any program. The messages are lines of JSON on a socket, sent
 * in pieces, with or without file descriptors. The first byte of an input selects where the pieces are cut.
 * The second byte selects how many descriptors accompany each piece and how often one of the pieces is sent.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "fuzz.h"
#include "worker/runner/runner_wire.h"

#define PIECES 10

#define FDS_MAX (MF_CHANNEL_FDS_MAX + 1)

static void send_piece(int fd, const uint8_t *data, size_t size, int n_fds)
{
    union {
        char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control = {.room = {0}};
    struct iovec part = {(void *)data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (n_fds > 0) {
        int fds[FDS_MAX];
        for (int i = 0; i < n_fds; i++)
            fds[i] = STDERR_FILENO;
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                 .cmsg_type = SCM_RIGHTS,
                                 .cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int))};
        memcpy(CMSG_DATA(head), fds, (size_t)n_fds * sizeof(int));
    }
    /* the receiver may have stopped reading */
    MF_MUST(size == 0 || sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 0);
}

/* An accepted message can be forwarded and arrives unchanged. */
static void check_forwarding(const cJSON *message)
{
    struct mf_channel from, to;
    int pair[2];
    cJSON *again = NULL;
    MF_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    mf_channel_init(&from, pair[0]);
    mf_channel_init(&to, pair[1]);
    MF_MUST(mf_channel_wait(&to, 0, &again) == -ETIMEDOUT);
    MF_MUST(mf_channel_send_wait(&from, message, STDERR_FILENO) == 0);
    MF_MUST(mf_channel_wait(&to, 10000, &again) == 1);
    int fd = mf_channel_take_fd(&to);
    MF_MUST(fd >= 0 && mf_channel_take_fd(&to) == -1 && close(fd) == 0);
    _cleanup_(mf_freep) char *one = mf_json_print(message);
    _cleanup_(mf_freep) char *two = mf_json_print(again);
    MF_MUST(one && two && strcmp(one, two) == 0);
    cJSON_Delete(again);
    /* mf_channel_send_many may delay a message until the next send */
    MF_MUST(mf_channel_send_many(&from, message) == 0 && mf_channel_send_wait(&from, message, -1) == 0);
    for (int i = 0; i < 2; i++) {
        again = NULL;
        MF_MUST(mf_channel_wait(&to, 10000, &again) == 1);
        cJSON_Delete(again);
    }
    mf_channel_release(&from);
    MF_MUST(mf_channel_wait(&to, 10000, &again) == 0);
    mf_channel_release(&to);
}

/* Sends a "bye" message; returns the result of the send. */
static int answer(struct mf_channel *c, int fd)
{
    _cleanup_(cJSON_Deletep) cJSON *bye = mf_channel_message("bye");
    MF_MUST(bye);
    return mf_channel_send(c, bye, fd);
}

/* Receives the remaining messages until the channel ends. */
static void receive_rest(struct mf_channel *c)
{
    int r;
    do {
        cJSON *message = NULL;
        r = mf_channel_wait(c, 10000, &message);
        MF_MUST((r == 1) == (message != NULL) && r != -ETIMEDOUT);
        cJSON_Delete(message);
    } while (r == 1 || r == -EBADMSG);
}

/* The queue of messages for a peer that does not read is bounded. When the peer reads, it receives every
 * queued message. */
static void check_backpressure(void)
{
    struct mf_channel from, to;
    int pair[2], n = 0, received = 0, r;
    static char filler[60000];
    _cleanup_(cJSON_Deletep) cJSON *large = mf_channel_message("large");
    memset(filler, 'x', sizeof(filler) - 1);
    MF_MUST(large && cJSON_AddStringToObject(large, "filler", filler));
    MF_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    mf_channel_init(&from, pair[0]);
    mf_channel_init(&to, pair[1]);
    while ((r = mf_channel_send(&from, large, STDERR_FILENO)) == 0)
        n++;
    MF_MUST(r == -ENOBUFS && n > MF_CHANNEL_FDS_MAX &&
            mf_channel_send_wait(&from, large, STDERR_FILENO) == r);
    while (received < n) {
        cJSON *message = NULL;
        MF_MUST(mf_channel_flush(&from) >= 0 && mf_channel_fill(&to) == 0);
        while (mf_channel_next(&to, &message) == 1) {
            received++;
            cJSON_Delete(message);
            int fd = mf_channel_take_fd(&to);
            MF_MUST(fd >= 0 && close(fd) == 0);
        }
    }
    mf_channel_release(&from);
    mf_channel_release(&to);
}

/* A message that cannot be sent is refused, and the channel stays usable. */
static void check_refusals(void)
{
    struct mf_channel c;
    int pair[2];
    MF_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    mf_channel_init(&c, pair[1]);
    _cleanup_(mf_freep) char *filler = malloc(MF_CHANNEL_LINE_MAX + 1);
    _cleanup_(cJSON_Deletep) cJSON *large = mf_channel_message("large");
    MF_MUST(filler && large);
    memset(filler, 'x', MF_CHANNEL_LINE_MAX);
    filler[MF_CHANNEL_LINE_MAX] = '\0';
    MF_MUST(cJSON_AddStringToObject(large, "filler", filler));
    MF_MUST(mf_channel_send(&c, large, -1) == -EMSGSIZE && mf_channel_send_many(&c, large) == -EMSGSIZE);
    MF_MUST(answer(&c, INT_MAX) == -EBADF && answer(&c, -1) == 0);
    mf_channel_release(&c);
    (void)close(pair[0]);
}

/* Receives available messages. Returns false once the channel rejects further input. */
static bool receive(struct mf_channel *c)
{
    int filled = mf_channel_fill(c), r;
    cJSON *message = NULL;
    MF_MUST(filled == 0 || filled == -EPROTO);
    while ((r = mf_channel_next(c, &message)) == 1 || r == -EBADMSG) {
        if (r == 1) {
            MF_MUST(cJSON_IsObject(message) && mf_channel_op(message));
            check_forwarding(message);
        }
        cJSON_Delete(message);
        message = NULL;
    }
    MF_MUST(r == 0 || r == -EMSGSIZE || r == -EPROTO);
    return filled == 0 && r == 0;
}

/* number of descriptors per piece, and how often the second piece is sent */
static const struct {
    int n_fds, times;
} deliveries[] = {
    {0, 1},       {1, 1},  {8, MF_CHANNEL_FDS_MAX / 8},     /* fills the descriptor queue exactly */
    {FDS_MAX, 1}, {0, 48}, {7, MF_CHANNEL_FDS_MAX / 7 + 1}, /* overflows the descriptor queue */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mf_channel c;
    int pair[2];
    static bool sends_checked;
    if (!sends_checked) {
        check_backpressure();
        check_refusals();
    }
    sends_checked = true;
    if (size < 2)
        return 0;
    unsigned cut = data[0] & 7, delivery = data[1] % MF_ARRAY_LEN(deliveries);
    data += 2;
    size -= 2;
    MF_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    mf_channel_init(&c, pair[1]);
    bool accepts = true;
    size_t at = 0;
    for (int i = 0; i < PIECES && accepts; i++) {
        size_t end = i + 1 == PIECES ? size : at + (size - at) * cut / 8;
        for (int n = 0; n < (i == 1 ? deliveries[delivery].times : 1); n++)
            send_piece(pair[0], data + at, end - at, deliveries[delivery].n_fds);
        at = end;
        accepts = i + 1 == PIECES || receive(&c); /* the last piece is left to receive_rest() */
    }
    MF_MUST(answer(&c, -1) == 0 && !mf_channel_wants_write(&c));
    (void)close(pair[0]);
    MF_MUST(answer(&c, STDERR_FILENO) == -EPIPE);
    receive_rest(&c);
    int fd = mf_channel_take_fd(&c); /* the channel closes remaining descriptors on release */
    MF_MUST(fd < 0 || close(fd) == 0);
    mf_channel_release(&c);
    return 0;
}
