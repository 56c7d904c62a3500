/* moefarmd: the coordinator. The main thread is the writer; workers' messages, HTTP and readers have threads of their own. */
#include "common/base/cleanup.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/base/open_files.h"
#include "common/base/opts.h"
#include "common/base/text.h"
#include "server/farm/farm.h"
#include "server/http/http.h"
#include "server/http/reader.h"
#include "server/store/store_backup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define HTTP_WAIT_MS 2000
#define PEM_MAX      (256 << 10)

struct options {
    const char *state, *backup, *http, *hub, *port_file, *log_level, *tls_certificate, *tls_key;
    int64_t beat_ms, readers, attempts, http_rate, tune_misses_s;
    double unit_s, race_s, samples_days;
    bool keys, tokens, plain;
};

/* What runs, so that everything ends in one place, in the order that the fields say. */
struct daemon {
    int lock, signals;
    bool tokens;             /* the API asks for them */
    struct mf_key_pair keys; /* of the hub */
    struct mf_notify notify;
    char *certificate, *tls_key;
    void *zmq;
    struct mf_farm *farm;
    struct mf_readers *readers;
    struct mf_http *http;
};

static int read_options(int argc, char **argv, struct options *o)
{
    int rest = argc;
    /* clang-format off */
    const struct mf_opt opts[] = {
        {"state",          MF_OPT_TEXT,   &o->state,          "DIR",          "folder of the database, made if need be", 0, 0},
        {"backup",         MF_OPT_TEXT,   &o->backup,         "FILE",         "copy the state folder's database into this new file and end; the moefarmd that works in it goes on", 0, 0},
        {"http",           MF_OPT_TEXT,   &o->http,           "ADDRESS:PORT", "REST API and status page; port 0 takes any", 0, 0},
        {"hub",            MF_OPT_TEXT,   &o->hub,            "ADDRESS:PORT", "where workers connect; port 0 takes any", 0, 0},
        {"port-file",      MF_OPT_TEXT,   &o->port_file,      "FILE",         "write the real ports there once both are bound: lines http=PORT, hub=PORT", 0, 0},
        {"keys",           MF_OPT_BOOL,   &o->keys,           NULL,           "on loopback too only workers with an enrolled key are taken; beyond it that is always so", 0, 0},
        {"tokens",         MF_OPT_BOOL,   &o->tokens,         NULL,           "on loopback too the API asks for an access token; beyond it that is always so", 0, 0},
        {"tls-cert",       MF_OPT_TEXT,   &o->tls_certificate, "FILE",        "PEM, the server's certificate first: the API by HTTPS", 0, 0},
        {"tls-key",        MF_OPT_TEXT,   &o->tls_key,        "FILE",         "PEM, its key", 0, 0},
        {"plain-http",     MF_OPT_BOOL,   &o->plain,          NULL,           "beyond loopback without TLS: something in front ends it", 0, 0},
        {"http-rate",      MF_OPT_INT,    &o->http_rate,      "N",            "requests a second of one token or address, where tokens are asked for; 0: no bound", 0, 1000000},
        {"beat-ms",        MF_OPT_INT,    &o->beat_ms,        "MS",           "a worker's heartbeat; a lease is three", 10, 600000},
        {"attempts",       MF_OPT_INT,    &o->attempts,       "N",            "leases of a unit before it is given up", 1, 1000},
        {"unit-s",         MF_OPT_DOUBLE, &o->unit_s,         "S",            "seconds that a probe unit is cut to", 0, 0},
        {"race-s",         MF_OPT_DOUBLE, &o->race_s,         "S",            "seconds that a race may take, at the forecast times", 0, 0},
        {"samples-days",   MF_OPT_DOUBLE, &o->samples_days,   "DAYS",         "how long raw samples are kept; medians and spreads stay; 0: for ever", 0, 0},
        {"tune-misses",    MF_OPT_INT,    &o->tune_misses_s,  "S",            "tune what production missed (POST /api/v1/misses): a batch each S seconds of what is not tuned; 0: it is only listed", 0, 86400},
        {"readers",        MF_OPT_INT,    &o->readers,        "N",            "threads that answer what only reads", 1, 64},
        {"log-level",      MF_OPT_TEXT,   &o->log_level,      "LEVEL",        "error, warning, info or debug", 0, 0},
    };
    /* clang-format on */
    int r = mf_opts_parse("moefarmd [options]", opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    if (r == 0 && rest < argc) { /* "tokens" without its dashes would be a farm without tokens */
        (void)fprintf(stderr, "moefarmd: unexpected argument '%s'; options begin with --\n", argv[rest]);
        return -EINVAL;
    }
    return r;
}

static int set_log_level(const char *text)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; i < MF_ARRAY_LEN(levels); i++) {
        if (strcmp(text, levels[i]) == 0) {
            mf_log_init("moefarmd", (enum mf_log_level)i);
            return 0;
        }
    }
    mf_log_init("moefarmd", MF_LOG_INFO);
    return log_err(-EINVAL, "--log-level %s: give error, warning, info or debug", text);
}

/* "127.0.0.1:8080" or "[::1]:8080". */
static int split_address(const char *text, char *address, size_t cap, int *ret_port)
{
    const char *colon = strrchr(text, ':');
    int64_t port;
    if (!colon || mf_parse_i64(colon + 1, 0, 65535, &port) < 0)
        return -EINVAL;
    bool bracketed = text[0] == '[' && colon > text + 1 && colon[-1] == ']';
    mf_format(address, cap, "%.*s", (int)(colon - text) - 2 * bracketed, text + bracketed);
    *ret_port = (int)port;
    return 0;
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

/* ZeroMQ's endpoint of an address, with or without "tcp://". */
static int make_endpoint(const char *text, char *endpoint, size_t cap, bool *ret_beyond)
{
    char address[256];
    int port;
    const char *plain = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    if (split_address(plain, address, sizeof(address), &port) < 0)
        return log_err(-EINVAL, "--hub %s: give ADDRESS:PORT, as in 127.0.0.1:7070", text);
    mf_format(endpoint, cap, "tcp://%s", plain);
    *ret_beyond = !is_loopback(address);
    return 0;
}

/* Of the coordinator: made at the first start. Workers know the public half from their enrolment on. */
static int load_keys(const char *state, struct mf_key_pair *ret)
{
    char path[4096], text[MF_KEY_TEXT_MAX + 1], public[MF_KEY_TEXT_MAX];
    uint8_t secret[MF_KEY_SIZE];
    mf_format(path, sizeof(path), "%s/hub.key", state);
    int r = mf_secret_file_read(path, text, sizeof(text));
    if (r == -ENOENT) {
        r = mf_secret_make(secret);
        mf_key_print(secret, text);
        if (r == 0)
            r = mf_secret_file_write(path, text);
    } else if (r == 0) {
        r = mf_key_parse(text, secret);
    }
    if (r == 0)
        r = mf_key_pair_of(secret, ret);
    if (r < 0)
        return log_err(r, "read or make the hub's key %s", path);
    mf_key_print(ret->public, public);
    log_info("workers need a key; the hub's own is %s", public);
    return 0;
}

/* One coordinator a state folder: the lock goes with the process, whatever ends it. */
static int lock_state(const char *state, int *ret_fd)
{
    char path[4096];
    if (mkdir(state, 0700) < 0 && errno != EEXIST)
        return log_err(-errno, "make the state folder %s", state);
    mf_format(path, sizeof(path), "%s/lock", state);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return log_err(-errno, "open %s", path);
    *ret_fd = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return log_err(-errno, "lock the state folder %s; is another moefarmd working in it?", state);
    return 0;
}

static int open_signals(int *ret_fd)
{
    sigset_t set;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    /* Before any thread: they inherit the mask, so that only the descriptor gets them */
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return log_err(-errno, "block signals");
    *ret_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *ret_fd < 0 ? log_err(-errno, "take signals") : 0;
}

/* Written beside and renamed: who waits for the file finds it whole. */
static int write_port_file(const char *path, int http, const char *workers)
{
    char temporary[4096];
    mf_format(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid());
    _cleanup_(mf_fclosep) FILE *file = fopen(temporary, "we");
    if (!file)
        return log_err(-errno, "write %s", temporary);
    if (fprintf(file, "http=%d\nhub=%s\n", http, strrchr(workers, ':') + 1) < 0 || fflush(file) != 0)
        return log_err(-errno, "write %s", temporary);
    return rename(temporary, path) < 0 ? log_err(-errno, "rename %s", path) : 0;
}

/* A PEM file as a text; with the terminator that libmicrohttpd wants. */
static int read_pem(const char *option, const char *path, char **ret)
{
    char *text = malloc(PEM_MAX);
    int r = text ? mf_secret_file_read(path, text, PEM_MAX) : -ENOMEM;
    if (r < 0) {
        free(text);
        return log_err(r, "--%s %s", option, path);
    }
    *ret = text;
    return 0;
}

/* What the API asks for. Whoever reaches the port without can have the farm run code on its workers. */
static int secure_http(struct daemon *d, const struct options *o, struct mf_http_options *http)
{
    bool beyond = !is_loopback(http->address);
    int r = 0;
    if (!*o->tls_certificate != !*o->tls_key)
        return log_err(-EINVAL, "--tls-cert and --tls-key: give both, or none");
    if (beyond && !*o->tls_certificate && !o->plain)
        return log_err(
            -EPERM,
            "--http %s: beyond loopback (127.0.0.1 or [::1]) give --tls-cert and --tls-key, or --plain-http"
            " when something in front of it ends TLS",
            o->http);
    d->tokens = beyond || o->tokens;
    http->plain = o->plain;
    http->rate = o->http_rate;
    if (*o->tls_certificate)
        r = read_pem("tls-cert", o->tls_certificate, &d->certificate);
    if (r == 0 && *o->tls_key)
        r = read_pem("tls-key", o->tls_key, &d->tls_key);
    http->certificate = d->certificate;
    http->key = d->tls_key;
    return r;
}

/* The reason has its own words: those of an errno behind them would say another, or the same again. */
static int log_why(int r, const char *what, const char *why)
{
    if (!*why)
        return log_err(r, "%s", what);
    mf_log(MF_LOG_ERROR, "%s: %s", what, why);
    return r;
}

static int start_farm(struct daemon *d, const struct options *o, const char *endpoint, bool keys)
{
    char why[512] = "", database[4096], token[4096];
    mf_format(database, sizeof(database), "%s/farm.db", o->state);
    mf_format(token, sizeof(token), "%s/admin.token", o->state);
    struct mf_farm_options options = MF_FARM_OPTIONS_INIT;
    options.path = database;
    options.endpoint = endpoint;
    options.keys = keys ? &d->keys : NULL;
    options.first_token = d->tokens ? token : NULL;
    options.beat_ms = o->beat_ms;
    options.attempts = o->attempts;
    options.unit_s = o->unit_s;
    options.race_s = o->race_s;
    options.samples_days = o->samples_days;
    options.tune_misses_s = o->tune_misses_s;
    int r = mf_farm_new(d->zmq, &options, &d->farm, why, sizeof(why));
    return r < 0 ? log_why(r, "start the farm", why) : 0;
}

static void say_listening(const struct options *o, char *text, size_t cap)
{
    bool tls = *o->tls_certificate != '\0';
    mf_format(text, cap, "listen at %s%s%s%s%s", o->http, tls ? " with --tls-cert " : "", o->tls_certificate,
              tls ? " and --tls-key " : "", o->tls_key);
}

static int start_all(struct daemon *d, const struct options *o)
{
    char database[4096], why[512] = "";
    char address[256], endpoint[300], listening[1024];
    bool beyond = false;
    struct mf_http_options http = {.address = address};
    if (split_address(o->http, address, sizeof(address), &http.port) < 0)
        return log_err(-EINVAL, "--http %s: give ADDRESS:PORT, as in 127.0.0.1:8080", o->http);
    int r = secure_http(d, o, &http);
    if (r == 0)
        r = make_endpoint(o->hub, endpoint, sizeof(endpoint), &beyond);
    if (r == 0 && (r = mf_notify_init(&d->notify)) < 0)
        r = log_err(r, "NOTIFY_SOCKET: give a path or @name");
    if (r == 0)
        r = lock_state(o->state, &d->lock);
    if (r == 0 && (beyond || o->keys))
        r = load_keys(o->state, &d->keys);
    if (r == 0)
        r = open_signals(&d->signals);
    if (r < 0)
        return r;
    d->zmq = zmq_ctx_new();
    if (!d->zmq)
        return log_err(-errno, "start ZeroMQ");
    http.zmq = d->zmq;
    http.tokens = d->tokens ? database : NULL;
    mf_format(database, sizeof(database), "%s/farm.db", o->state);
    r = start_farm(d, o, endpoint, beyond || o->keys);
    if (r < 0)
        return r;
    r = mf_readers_start(d->zmq, database, (int)o->readers, &d->readers);
    if (r < 0)
        return log_err(r, "start the reader threads");
    say_listening(o, listening, sizeof(listening));
    r = mf_http_start(&http, &d->http, why, sizeof(why));
    if (r < 0)
        return log_why(r, listening, why);
    log_info("http%s://%s:%d/ and %s, state in %s", d->certificate ? "s" : "", address, mf_http_port(d->http),
             mf_farm_endpoint(d->farm), o->state);
    r = *o->port_file ? write_port_file(o->port_file, mf_http_port(d->http), mf_farm_endpoint(d->farm)) : 0;
    if (r == 0)
        mf_notify_say(&d->notify, "READY=1");
    return r;
}

static void stop_all(struct daemon *d)
{
    d->readers = mf_readers_stop(d->readers);
    d->http = mf_http_stop(d->http, HTTP_WAIT_MS);
    d->farm = mf_farm_free(d->farm);
    if (d->zmq)
        (void)zmq_ctx_term(d->zmq);
    mf_notify_release(&d->notify);
    free(d->certificate);
    free(d->tls_key);
    mf_closep(&d->signals);
    mf_closep(&d->lock);
}

static int back_up(const struct options *o)
{
    char database[4096], why[512] = "";
    int64_t bytes;
    mf_format(database, sizeof(database), "%s/farm.db", o->state);
    int r = mf_store_backup(database, o->backup, &bytes, why, sizeof(why));
    if (r < 0)
        return log_why(r, "backup", why);
    log_info("%s: %" PRId64 " bytes", o->backup, bytes);
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {
        .state = "moefarm-state",
        .backup = "",
        .http = "127.0.0.1:8080",
        .hub = "127.0.0.1:7070",
        .port_file = "",
        .log_level = "info",
        .tls_certificate = "",
        .tls_key = "",
        .http_rate = 100,
        .beat_ms = 1000,
        .readers = 2,
        .attempts = 8,
        .unit_s = 2,
        .race_s = 0.4,
    };
    struct daemon d = {.lock = -1, .signals = -1, .notify = {.fd = -1}};
    int r = read_options(argc, argv, &o);
    if (r != 0)
        return r > 0 ? EXIT_SUCCESS : 2;
    if (set_log_level(o.log_level) < 0)
        return 2;
    if (mf_fault_init() < 0) {
        (void)log_err(-EINVAL, "MOEFARM_FAULT: give NAME:N:FILE");
        return 2;
    }
    r = mf_open_files_raise();
    if (r < 0)
        (void)log_err(r, "raise the limit of open files");
    mf_store_init();
    if (*o.backup)
        return back_up(&o) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    r = start_all(&d, &o);
    if (r == 0) {
        r = mf_farm_run(d.farm, d.signals, &d.notify);
        log_info(r == 0 ? "stopping: asked to" : "stopping: the store failed");
        mf_notify_say(&d.notify, "STOPPING=1");
    }
    stop_all(&d);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
