#include "common/net/sse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void mf_sse_init(struct mf_sse *s, mf_sse_fn event, void *context)
{
    memset(s, 0, sizeof(*s));
    s->event = event;
    s->context = context;
    mf_buf_init(&s->line, MF_SSE_EVENT_MAX);
    mf_buf_init(&s->data, MF_SSE_EVENT_MAX);
}

void mf_sse_release(struct mf_sse *s)
{
    mf_buf_release(&s->line);
    mf_buf_release(&s->data);
}

static void discard_event(struct mf_sse *s)
{
    s->kind[0] = '\0';
    s->has_data = false;
    mf_buf_clear(&s->data);
}

void mf_sse_restart(struct mf_sse *s)
{
    discard_event(s);
    mf_buf_clear(&s->line);
    s->after_cr = false;
    memcpy(s->next_id, s->last_id, sizeof(s->next_id));
}

static int end_event(struct mf_sse *s)
{
    int r = 0;

    memcpy(s->last_id, s->next_id, sizeof(s->last_id));
    if (s->has_data)
        r = s->event(s->context, s->kind[0] ? s->kind : "message", s->data.data);
    discard_event(s);
    return r;
}

static int process_field(struct mf_sse *s, const char *name, const char *value)
{
    if (!strcmp(name, "data")) {
        if (s->has_data)
            (void)mf_buf_adds(&s->data, "\n");
        s->has_data = true;
        (void)mf_buf_adds(&s->data, value);
        return mf_buf_error(&s->data) == -EFBIG ? -EMSGSIZE : mf_buf_error(&s->data);
    }
    /* Event names and ids from the coordinator are short. A longer name is truncated and then matches no
     * known event */
    if (!strcmp(name, "event"))
        (void)snprintf(s->kind, sizeof(s->kind), "%s", value);
    else if (!strcmp(name, "id"))
        (void)snprintf(s->next_id, sizeof(s->next_id), "%s", value);
    return 0;
}

static int process_line(struct mf_sse *s)
{
    char *line = s->line.data, *colon;
    const char *value = "";

    if (!*line)
        return end_event(s);
    if (*line == ':')
        return 0;
    colon = strchr(line, ':');
    if (colon) {
        *colon = '\0';
        value = colon + 1;
        if (*value == ' ')
            value++;
    }
    return process_field(s, line, value);
}

int mf_sse_feed(struct mf_sse *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        int r;

        if (s->after_cr && bytes[i] == '\n') {
            s->after_cr = false;
            i++;
            continue;
        }
        s->after_cr = false;
        while (i + len < n && bytes[i + len] != '\n' && bytes[i + len] != '\r')
            len++;
        r = mf_buf_add(&s->line, bytes + i, len);
        if (r < 0)
            return r == -EFBIG ? -EMSGSIZE : r;
        i += len;
        if (i == n)
            break;
        s->after_cr = bytes[i] == '\r';
        i++;
        r = process_line(s);
        if (r < 0)
            return r;
        mf_buf_clear(&s->line);
    }
    return 0;
}
