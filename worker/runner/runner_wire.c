#include "worker/runner/runner_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/moe/status.h"

#define IN_FDS_PER_READ 8
/* mf_channel_send_many writes if this many bytes are queued or if the last write was this long ago. */
#define MANY_BYTES (32 << 10)
#define MANY_MS    5

void mf_channel_init(struct mf_channel *c, int fd)
{
    *c = (struct mf_channel){.fd = fd};
    /* The buffer has room for a full line and the start of the next line. */
    mf_buf_init(&c->in, MF_CHANNEL_LINE_MAX + (1u << 20));
    mf_buf_init(&c->out, MF_CHANNEL_OUT_MAX);
}

void mf_channel_release(struct mf_channel *c)
{
    for (int i = 0; i < c->n_in_fds; i++)
        (void)close(c->in_fds[i]);
    for (int i = 0; i < c->n_out_fds; i++)
        (void)close(c->out_fds[i].fd);
    c->n_in_fds = c->n_out_fds = 0;
    mf_buf_release(&c->in);
    mf_buf_release(&c->out);
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
}

/* Makes one sendmsg call. It sends either the bytes before the next descriptor, or the next descriptor and
 * the bytes up to the descriptor after it. */
static ssize_t write_some(struct mf_channel *c)
{
    bool with_fd = c->n_out_fds > 0 && c->out_fds[0].at == 0;
    int next = with_fd ? 1 : 0;
    size_t len = next < c->n_out_fds ? c->out_fds[next].at : c->out.len;
    struct iovec iov = {.iov_base = c->out.data, .iov_len = len};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (with_fd) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);
        cm->cmsg_level = SOL_SOCKET;
        cm->cmsg_type = SCM_RIGHTS;
        cm->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cm), &c->out_fds[0].fd, sizeof(int));
    }
    ssize_t n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return -errno;
    if (with_fd && n > 0) {
        (void)close(c->out_fds[0].fd);
        c->n_out_fds--;
        memmove(&c->out_fds[0], &c->out_fds[1], (size_t)c->n_out_fds * sizeof(c->out_fds[0]));
    }
    for (int i = 0; i < c->n_out_fds; i++)
        c->out_fds[i].at -= (size_t)n;
    mf_buf_consume(&c->out, (size_t)n);
    return n;
}

int mf_channel_flush(struct mf_channel *c)
{
    while (c->out.len > 0) {
        ssize_t n = write_some(c);
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN || n == -EWOULDBLOCK)
            return 1;
        if (n < 0)
            return (int)n;
    }
    return 0;
}

static int queue(struct mf_channel *c, const cJSON *message, int fd)
{
    _cleanup_(mf_freep) char *text = mf_json_print(message);
    if (!text)
        return -ENOMEM;
    size_t len = strlen(text);
    if (len + 1 > MF_CHANNEL_LINE_MAX)
        return -EMSGSIZE;
    if (c->out.len + len + 1 > c->out.max || (fd >= 0 && c->n_out_fds == MF_CHANNEL_FDS_MAX))
        return -ENOBUFS;
    text[len] = '\n';
    int copy = -1;
    if (fd >= 0) {
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0)
            return -errno;
    }
    size_t at = c->out.len;
    int r = mf_buf_add(&c->out, text, len + 1);
    if (r < 0) {
        if (copy >= 0)
            (void)close(copy);
        return r;
    }
    if (copy >= 0) {
        c->out_fds[c->n_out_fds].fd = copy;
        c->out_fds[c->n_out_fds++].at = at;
    }
    return 0;
}

int mf_channel_send(struct mf_channel *c, const cJSON *message, int fd)
{
    int r = queue(c, message, fd);
    if (r < 0)
        return r;
    r = mf_channel_flush(c);
    return r < 0 ? r : 0;
}

static int take_control(struct mf_channel *c, struct msghdr *msg)
{
    int r = 0;
    for (struct cmsghdr *cm = CMSG_FIRSTHDR(msg); cm; cm = CMSG_NXTHDR(msg, cm)) {
        if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(int));
            if (c->n_in_fds < MF_CHANNEL_FDS_MAX) {
                c->in_fds[c->n_in_fds++] = fd;
            } else {
                (void)close(fd);
                r = -EPROTO;
            }
        }
    }
    if (msg->msg_flags & MSG_CTRUNC)
        r = -EPROTO;
    return r;
}

int mf_channel_fill(struct mf_channel *c)
{
    char bytes[65536];
    while (!c->eof) {
        /* Stop reading at either limit. The caller takes the messages first and then reads the rest. */
        if (c->in.len - c->in_start > MF_CHANNEL_LINE_MAX || c->n_in_fds == MF_CHANNEL_FDS_MAX)
            return 0;
        struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
        union {
            char bytes[CMSG_SPACE(IN_FDS_PER_READ * sizeof(int))];
            struct cmsghdr align;
        } control;
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
        ssize_t n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0 && errno != ECONNRESET)
            return -errno;
        if (n <= 0) {
            c->eof = true;
            return 0;
        }
        int r = take_control(c, &msg);
        if (r < 0)
            return r;
        if (c->in_start > 0 && c->in_start + (size_t)n > 65536) {
            mf_buf_consume(&c->in, c->in_start);
            c->in_scanned -= c->in_start;
            c->in_start = 0;
        }
        r = mf_buf_add(&c->in, bytes, (size_t)n);
        if (r < 0)
            return r;
    }
    return 0;
}

int mf_channel_next(struct mf_channel *c, cJSON **ret)
{
    for (;;) {
        const char *from = c->in.data + c->in_scanned;
        const char *end = c->in.len > c->in_scanned ? memchr(from, '\n', c->in.len - c->in_scanned) : NULL;
        if (!end) {
            c->in_scanned = c->in.len;
            if (c->n_in_fds == MF_CHANNEL_FDS_MAX)
                /* the messages so far carry no descriptors, and no further descriptors can be read */
                return -EPROTO;
            return c->in.len - c->in_start >= MF_CHANNEL_LINE_MAX ? -EMSGSIZE : 0;
        }
        const char *line = c->in.data + c->in_start;
        size_t len = (size_t)(end - line);
        c->in_start += len + 1;
        c->in_scanned = c->in_start;
        if (len == 0)
            continue;
        _cleanup_(cJSON_Deletep) cJSON *message = mf_json_parse(line, len, MF_CHANNEL_LINE_MAX);
        if (c->in_start == c->in.len) {
            mf_buf_clear(&c->in);
            c->in_start = c->in_scanned = 0;
        }
        const char *op;
        if (!message || !cJSON_IsObject(message) || mf_json_text(message, "op", &op) < 0)
            return -EBADMSG;
        *ret = MF_TAKE(message);
        return 1;
    }
}

int mf_channel_take_fd(struct mf_channel *c)
{
    if (c->n_in_fds == 0)
        return -1;
    int fd = c->in_fds[0];
    c->n_in_fds--;
    memmove(&c->in_fds[0], &c->in_fds[1], (size_t)c->n_in_fds * sizeof(int));
    return fd;
}

static int wait_for(struct mf_channel *c, short events, int64_t until_ms)
{
    int64_t left = -1;
    if (until_ms >= 0) {
        left = until_ms - mf_now_ms();
        if (left <= 0)
            return -ETIMEDOUT;
    }
    struct pollfd p = {.fd = c->fd, .events = events};
    if (poll(&p, 1, (int)MF_MIN(left, 1 << 30)) < 0 && errno != EINTR)
        return -errno;
    return 0;
}

static int flush_wait(struct mf_channel *c)
{
    int r;
    while ((r = mf_channel_flush(c)) == 1) {
        r = wait_for(c, POLLOUT, -1);
        if (r < 0)
            return r;
    }
    c->written_ms = mf_now_ms();
    return r;
}

int mf_channel_send_wait(struct mf_channel *c, const cJSON *message, int fd)
{
    int r = queue(c, message, fd);
    return r < 0 ? r : flush_wait(c);
}

/* Queues the message. If the last write was some time ago, writes the message at once, so that a slow sender
 * still reports progress. */
int mf_channel_send_many(struct mf_channel *c, const cJSON *message)
{
    int r = queue(c, message, -1);
    if (r < 0 || (c->out.len < MANY_BYTES && mf_now_ms() - c->written_ms < MANY_MS))
        return r;
    return flush_wait(c);
}

int mf_channel_wait(struct mf_channel *c, int64_t timeout_ms, cJSON **ret)
{
    int64_t until = timeout_ms < 0 ? -1 : mf_now_ms() + timeout_ms;
    for (;;) {
        int r = mf_channel_next(c, ret);
        if (r != 0)
            return r;
        if (c->eof)
            return 0;
        r = mf_channel_flush(c);
        if (r < 0)
            return r;
        r = wait_for(c, (short)(POLLIN | (r == 1 ? POLLOUT : 0)), until);
        if (r < 0)
            return r;
        r = mf_channel_fill(c);
        if (r < 0)
            return r;
    }
}

cJSON *mf_channel_message(const char *op)
{
    cJSON *message = cJSON_CreateObject();
    if (message && !cJSON_AddStringToObject(message, "op", op)) {
        cJSON_Delete(message);
        return NULL;
    }
    return message;
}

const char *mf_channel_op(const cJSON *message)
{
    const char *op = "";
    (void)mf_json_text(message, "op", &op);
    return op;
}
