/* moefarm watch: shows the progress of a batch until it ends. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/support/api.h"
#include "cli/support/plain_output.h"
#include "cli/support/progress.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define DRAW_MS    200   /* time between two redraws */
#define LIST_MS    5000  /* time between two reads of the lists, which correct missed events */
#define SUMMARY_MS 10000 /* time between two summaries if stdout is not a terminal */
#define WAITING_MS 200   /* tasks that wait less than this get no message, because they were just submitted */
#define RETRY_MS   250   /* first pause before a reconnection; doubles up to RETRY_MAX */
#define RETRY_MAX  2000
#define TEXT_MAX   (4u << 20)

#define STREAM_ENDED (-ECANCELED) /* callbacks return this value to end the stream when the batch has ended */

struct watch {
    struct mf_cli *cli;
    const struct mf_watch_options *options;
    struct mf_progress progress;
    struct mf_buf text;
    struct mf_buf waiting; /* reason why the batch waits, from the last reply */
    int64_t waiting_ms;    /* time when `waiting` last changed */
    bool waiting_printed;
    size_t drawn; /* lines on the terminal that the next redraw overwrites */
    int64_t drawn_ms, listed_ms, summed_ms;
    /* number of steps in the last summary; while it is unchanged, no new summary is printed */
    int64_t summed;
    int failed;       /* exit code of a failed read of the lists */
    int stopped;      /* exit code of the caller's on_tick, which ends the watch */
    bool list_wanted; /* true after each connection, because events may have been missed before it */
};

/* Returns the terminal's size. A drawing larger than the terminal could not be overwritten. */
static struct winsize terminal_size(void)
{
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < 40)
        size.ws_col = 80;
    if (size.ws_row < 4)
        size.ws_row = 24;
    return size;
}

/* Prints why the batch waits, once for each new reason. Without the message, a class without workers would
 * look like a hang. */
static void print_waiting(struct watch *w)
{
    if (w->waiting_printed || w->waiting.len == 0 || w->listed_ms - w->waiting_ms < WAITING_MS)
        return;
    (void)mf_buf_add(&w->text, w->waiting.data, w->waiting.len);
    w->waiting_printed = true;
}

static void draw(struct watch *w, bool final)
{
    struct winsize size;

    if (!final && mf_now_ms() - w->drawn_ms < DRAW_MS)
        return;
    w->drawn_ms = mf_now_ms();
    mf_buf_clear(&w->text);
    if (w->cli->to_terminal) {
        if (w->drawn > 0)
            mf_plain_output_rewind(w->drawn);
        print_waiting(w);
        size = terminal_size();
        w->drawn = mf_progress_draw(&w->progress, size.ws_col - 1, size.ws_row - 1u, w->cli->utf8, &w->text);
    } else {
        print_waiting(w);
        mf_progress_print_ended(&w->progress, &w->text);
        if (!final && mf_now_ms() - w->summed_ms >= SUMMARY_MS &&
            mf_progress_measured(&w->progress) != w->summed) {
            w->summed_ms = mf_now_ms();
            w->summed = mf_progress_measured(&w->progress);
            mf_progress_summary(&w->progress, &w->text);
        }
    }
    (void)fwrite(w->text.data, 1, w->text.len, stdout);
    (void)fflush(stdout);
}

static void update_waiting(struct watch *w, const cJSON *batch)
{
    _cleanup_(mf_buf_release) struct mf_buf now;

    mf_buf_init(&now, TEXT_MAX);
    mf_api_waiting(batch, &now);
    if (now.len == w->waiting.len && (now.len == 0 || memcmp(now.data, w->waiting.data, now.len) == 0))
        return;
    mf_buf_clear(&w->waiting);
    if (now.len > 0)
        (void)mf_buf_add(&w->waiting, now.data, now.len);
    w->waiting_ms = mf_now_ms();
    w->waiting_printed = false;
}

static int read_lists(struct watch *w)
{
    _cleanup_(cJSON_Deletep) cJSON *batch = NULL;
    _cleanup_(cJSON_Deletep) cJSON *tasks = NULL;
    char path[MF_API_PATH_MAX];
    int code, r;

    mf_api_path(path, "/api/v1/batches/{}", w->progress.batch);
    code = mf_api_get(w->cli, path, &batch);
    if (code != 0)
        return code;
    mf_api_path(path, "/api/v1/batches/{}/tasks", w->progress.batch);
    code = mf_api_list(w->cli, path, &tasks);
    if (code != 0)
        return code;
    mf_progress_set_batch(&w->progress, batch);
    update_waiting(w, batch);
    r = mf_progress_set_tasks(&w->progress, tasks);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "batch %" PRId64 ": %s", w->progress.batch,
                           r == -EINVAL ? "malformed task in the reply" : "out of memory");
    w->listed_ms = mf_now_ms();
    w->list_wanted = false;
    return 0;
}

static int on_event(void *context, const char *kind, const char *text)
{
    struct watch *w = context;
    _cleanup_(cJSON_Deletep) cJSON *data = mf_api_parse(text, strlen(text));

    if (data)
        mf_progress_event(&w->progress, kind, data);
    return mf_progress_ended(&w->progress) ? STREAM_ENDED : 0;
}

static int call_on_tick(struct watch *w)
{
    if (w->options->on_tick)
        w->stopped = w->options->on_tick(w->options->context, &w->progress);
    return w->stopped != 0 ? STREAM_ENDED : 0;
}

static int on_tick(void *context)
{
    struct watch *w = context;

    if (w->list_wanted || mf_now_ms() - w->listed_ms >= LIST_MS) {
        w->failed = read_lists(w);
        if (w->failed != 0)
            return -EIO;
    }
    if (mf_progress_ended(&w->progress))
        return STREAM_ENDED;
    draw(w, false);
    return call_on_tick(w);
}

/* Follows the event stream until the batch has ended. Reconnects, for example while the coordinator restarts.
 */
static int follow(struct watch *w, struct mf_http *events)
{
    _cleanup_(mf_sse_release) struct mf_sse sse;
    int64_t lost_ms = 0, pause_ms = RETRY_MS;
    char path[MF_API_PATH_MAX];

    mf_sse_init(&sse, on_event, w);
    mf_api_path(path, "/api/v1/batches/{}/events", w->progress.batch);
    while (!mf_progress_ended(&w->progress)) {
        int64_t started = mf_now_ms();
        long status = 0;
        int r;

        w->list_wanted = true;
        r = mf_http_stream(events, path, &sse, on_tick, &status);
        if (w->failed == MF_EXIT_USAGE || (status >= 400 && status < 500))
            return w->failed ? w->failed : mf_cli_fail(MF_EXIT_USAGE, "%s: HTTP status %ld", path, status);
        if (mf_progress_ended(&w->progress))
            break;
        if (w->stopped != 0 || call_on_tick(w) != 0)
            return w->stopped;
        if (status == 200 && mf_now_ms() - started > RETRY_MAX) {
            lost_ms = 0;
            pause_ms = RETRY_MS;
        }
        if (lost_ms == 0)
            lost_ms = mf_now_ms();
        if (mf_now_ms() - lost_ms > w->options->reconnect_timeout_s * 1000)
            return mf_cli_fail(MF_EXIT_UNREACHED, "%s",
                               r < 0 ? mf_http_error(events) : "the event stream keeps ending");
        struct timespec pause = {.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000};
        (void)nanosleep(&pause, NULL);
        pause_ms = MF_MIN(pause_ms * 2, (int64_t)RETRY_MAX);
    }
    return 0;
}

static int finish(struct watch *w)
{
    struct mf_progress *p = &w->progress;

    draw(w, true);
    mf_buf_clear(&w->text);
    if (w->cli->to_terminal) {
        /* The drawing already shows the done tasks. Print only the other tasks as text. */
        for (size_t i = 0; i < p->n_tasks; i++)
            p->tasks[i].is_printed = p->tasks[i].state == MF_TASK_DONE;
        mf_progress_print_ended(p, &w->text);
    }
    mf_progress_summary(p, &w->text);
    (void)fwrite(w->text.data, 1, w->text.len, stdout);
    return mf_progress_count(p, MF_TASK_FAILED) > 0 || strcmp(p->state, "done") != 0 ? MF_EXIT_FAILED
                                                                                     : MF_EXIT_OK;
}

/* Tells the user that Ctrl-C ends the watch but not the batch. The handler has been reset (SA_RESETHAND), so
 * the signal raised here ends the program and the shell sees the cause. */
static void on_interrupt(int signal)
{
    static const char text[] =
        "\nmoefarm: stopped watching; the batch continues (moefarm watch follows it again, "
        "moefarm cancel stops it)\n";

    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)raise(signal);
}

int mf_watch_batch(struct mf_cli *cli, int64_t batch, const struct mf_watch_options *options)
{
    _cleanup_(mf_http_freep) struct mf_http *events = NULL;
    struct watch w = {
        .cli = cli, .options = options, .progress = MF_PROGRESS_INIT, .summed_ms = mf_now_ms(), .summed = -1};
    int code;

    if (!options->on_tick)
        (void)sigaction(SIGINT,
                        &(struct sigaction){.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, NULL);
    w.progress.batch = batch;
    mf_buf_init(&w.text, TEXT_MAX);
    mf_buf_init(&w.waiting, TEXT_MAX);
    code = read_lists(&w);
    if (code == 0)
        code = mf_api_connect(cli, &events);
    if (code == 0) {
        draw(&w, false);
        code = follow(&w, events);
    }
    /* Events may be newer than the last lists, so read the lists once more. */
    if (code == 0)
        code = read_lists(&w);
    if (code == 0)
        code = finish(&w);
    mf_buf_release(&w.text);
    mf_buf_release(&w.waiting);
    mf_progress_release(&w.progress);
    return code;
}

int mf_cmd_watch(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    int64_t batch, reconnect_timeout_s = 60;
    const struct mf_opt opts[] = {{.name = "reconnect-timeout",
                                   .type = MF_OPT_INT,
                                   .value = &reconnect_timeout_s,
                                   .argument = "S",
                                   .help = "maximum wait for an unreachable coordinator, in seconds",
                                   .min = 0,
                                   .max = 86400}};
    int rest, r;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (mf_parse_i64(argv[rest], 1, INT64_MAX, &batch) < 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "watch: '%s' is not the number of a batch; moefarm batches lists the batches",
                           argv[rest]);
    return mf_watch_batch(cli, batch, &(struct mf_watch_options){.reconnect_timeout_s = reconnect_timeout_s});
}
