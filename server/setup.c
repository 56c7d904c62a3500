#include "server/setup.h"

#include "common/base/cleanup.h"
#include "common/base/log.h"
#include "common/base/secret.h"
#include "common/base/text.h"
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

#define HTTP_WAIT_MS 2000 /* time for responses in progress when moefarmd stops */
#define PEM_MAX      (256 << 10)

/* Logs a failure whose reason is a complete sentence. Leaves out the text of the errno, which would repeat or
 * contradict the reason. */
static int log_reason(int r, const char *what, const char *reason)
{
    if (!*reason)
        return log_err(r, "%s", what);
    mf_log(MF_LOG_ERROR, "%s: %s", what, reason);
    return r;
}

/* ---- addresses ---- */

/* Splits an address and port: "127.0.0.1:8080" or "[::1]:8080". */
static int split_address(const char *text, char address[MF_SETUP_ADDRESS_MAX], int *ret_port)
{
    const char *colon = strrchr(text, ':');
    int64_t port;
    if (!colon || mf_parse_i64(colon + 1, 0, 65535, &port) < 0)
        return -EINVAL;
    bool bracketed = text[0] == '[' && colon > text + 1 && colon[-1] == ']';
    mf_format(address, MF_SETUP_ADDRESS_MAX, "%.*s", (int)(colon - text) - 2 * bracketed, text + bracketed);
    *ret_port = (int)port;
    return 0;
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

int mf_setup_addresses(struct mf_setup *s, const struct mf_setup_options *o)
{
    char hub_address[MF_SETUP_ADDRESS_MAX];
    int hub_port;
    const char *hub = strncmp(o->hub, "tcp://", 6) == 0 ? o->hub + 6 : o->hub;
    if (split_address(o->http, s->http_address, &s->http_port) < 0)
        return log_err(-EINVAL, "--http %s: give ADDRESS:PORT, as in 127.0.0.1:8080", o->http);
    if (split_address(hub, hub_address, &hub_port) < 0)
        return log_err(-EINVAL, "--hub %s: give ADDRESS:PORT, as in 127.0.0.1:7070", o->hub);
    mf_format(s->hub_endpoint, sizeof(s->hub_endpoint), "tcp://%s", hub);
    s->needs_tokens = o->tokens || !is_loopback(s->http_address);
    s->needs_keys = o->keys || !is_loopback(hub_address);
    return 0;
}

/* ---- TLS ---- */

/* Reads a PEM file as a zero-terminated text, as libmicrohttpd expects it. */
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

int mf_setup_tls(struct mf_setup *s, const struct mf_setup_options *o)
{
    if (!*o->tls_certificate != !*o->tls_key)
        return log_err(-EINVAL, "--tls-cert and --tls-key: give both, or none");
    if (!*o->tls_certificate && !is_loopback(s->http_address) && !o->plain_http)
        return log_err(-EPERM,
                       "--http %s: beyond loopback (127.0.0.1 or [::1]) give --tls-cert and --tls-key, or"
                       " --plain-http behind a proxy that terminates TLS",
                       o->http);
    if (!*o->tls_certificate)
        return 0;
    int r = read_pem("tls-cert", o->tls_certificate, &s->tls_certificate);
    return r < 0 ? r : read_pem("tls-key", o->tls_key, &s->tls_key);
}

/* ---- process: service manager, state folder, keys, signals ---- */

int mf_setup_notify(struct mf_setup *s)
{
    int r = mf_notify_init(&s->notify);
    return r < 0 ? log_err(r, "NOTIFY_SOCKET: give a path or @name") : 0;
}

int mf_setup_state(struct mf_setup *s, const struct mf_setup_options *o)
{
    char path[MF_SETUP_PATH_MAX];
    if (mkdir(o->state, 0700) < 0 && errno != EEXIST)
        return log_err(-errno, "make the state folder %s", o->state);
    mf_format(path, sizeof(path), "%s/lock", o->state);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return log_err(-errno, "open %s", path);
    s->lock_fd = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return log_err(-errno, "lock the state folder %s; is another moefarmd using it?", o->state);
    mf_format(s->database, sizeof(s->database), "%s/farm.db", o->state);
    return 0;
}

int mf_setup_hub_keys(struct mf_setup *s, const struct mf_setup_options *o)
{
    char path[MF_SETUP_PATH_MAX], text[MF_KEY_TEXT_MAX + 1], public[MF_KEY_TEXT_MAX];
    uint8_t secret[MF_KEY_SIZE];
    if (!s->needs_keys)
        return 0;
    mf_format(path, sizeof(path), "%s/hub.key", o->state);
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
        r = mf_key_pair_from_secret(secret, &s->keys);
    if (r < 0)
        return log_err(r, "read or make the hub's key %s", path);
    mf_key_print(s->keys.public, public);
    log_info("workers need an enrolled key; the hub's public key is %s", public);
    return 0;
}

int mf_setup_signals(struct mf_setup *s)
{
    sigset_t set;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return log_err(-errno, "block signals");
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? log_err(-errno, "open a signal descriptor") : 0;
}

/* ---- the farm and its threads ---- */

int mf_setup_farm(struct mf_setup *s, const struct mf_setup_options *o)
{
    char why[512] = "", token[MF_SETUP_PATH_MAX];
    s->zmq = zmq_ctx_new();
    if (!s->zmq)
        return log_err(-errno, "start ZeroMQ");
    mf_format(token, sizeof(token), "%s/admin.token", o->state);
    struct mf_farm_options options = MF_FARM_OPTIONS_INIT;
    options.path = s->database;
    options.endpoint = s->hub_endpoint;
    options.keys = s->needs_keys ? &s->keys : NULL;
    options.first_token = s->needs_tokens ? token : NULL;
    options.beat_ms = o->beat_ms;
    options.attempts = o->attempts;
    options.unit_s = o->unit_s;
    options.race_s = o->race_s;
    options.lease_max_s = o->lease_max_s;
    options.samples_days = o->samples_days;
    options.tune_misses_s = o->tune_misses_s;
    s->is_new = access(s->database, F_OK) < 0 && errno == ENOENT;
    int r = mf_farm_new(s->zmq, &options, &s->farm, why, sizeof(why));
    return r < 0 ? log_reason(r, "start the farm", why) : 0;
}

int mf_setup_readers(struct mf_setup *s, const struct mf_setup_options *o)
{
    int r = mf_readers_start(s->zmq, s->database, (int)o->readers, &s->readers);
    return r < 0 ? log_err(r, "start the reader threads") : 0;
}

/* Announces a new database, and warns about a state folder in which others can replace files. The sticky bit
 * keeps them from that. */
static void announce_state(const struct mf_setup *s, const struct mf_setup_options *o)
{
    struct stat st;
    if (s->is_new)
        log_info("started a new farm: created %s", s->database);
    if (stat(o->state, &st) == 0 && (st.st_mode & 022) && !(st.st_mode & S_ISVTX))
        log_warn("the state folder %s is writable by others (mode %04o): they can replace the database; run "
                 "chmod go-w",
                 o->state, st.st_mode & 07777);
}

int mf_setup_http(struct mf_setup *s, const struct mf_setup_options *o)
{
    char why[512] = "", what[1024];
    struct mf_http_options http = {.address = s->http_address,
                                   .port = s->http_port,
                                   .plain = o->plain_http,
                                   .rate = o->http_rate,
                                   .certificate = s->tls_certificate,
                                   .key = s->tls_key,
                                   .zmq = s->zmq,
                                   .tokens = s->needs_tokens ? s->database : NULL};
    bool tls = s->tls_certificate != NULL;
    int r = mf_http_start(&http, &s->http, why, sizeof(why));
    if (r < 0) {
        mf_format(what, sizeof(what), "listen at %s%s%s%s%s", o->http, tls ? " with --tls-cert " : "",
                  o->tls_certificate, tls ? " and --tls-key " : "", o->tls_key);
        return log_reason(r, what, why);
    }
    announce_state(s, o);
    log_info("http%s://%s:%d/ and %s, state in %s", tls ? "s" : "", s->http_address, mf_http_port(s->http),
             mf_farm_endpoint(s->farm), o->state);
    return 0;
}

int mf_setup_port_file(struct mf_setup *s, const struct mf_setup_options *o)
{
    char temporary[MF_SETUP_PATH_MAX];
    if (!*o->port_file)
        return 0;
    mf_format(temporary, sizeof(temporary), "%s.%ld", o->port_file, (long)getpid());
    _cleanup_(mf_fclosep) FILE *file = fopen(temporary, "we");
    if (!file)
        return log_err(-errno, "write %s", temporary);
    const char *hub_port = strrchr(mf_farm_endpoint(s->farm), ':') + 1;
    if (fprintf(file, "http=%d\nhub=%s\n", mf_http_port(s->http), hub_port) < 0 || fflush(file) != 0)
        return log_err(-errno, "write %s", temporary);
    return rename(temporary, o->port_file) < 0 ? log_err(-errno, "rename %s to %s", temporary, o->port_file)
                                               : 0;
}

void mf_setup_stop(struct mf_setup *s)
{
    s->readers = mf_readers_stop(s->readers);
    s->http = mf_http_stop(s->http, HTTP_WAIT_MS);
    s->farm = mf_farm_free(s->farm);
    if (s->zmq)
        (void)zmq_ctx_term(s->zmq);
    mf_notify_release(&s->notify);
    free(s->tls_certificate);
    free(s->tls_key);
    mf_closep(&s->signal_fd);
    mf_closep(&s->lock_fd);
}

int mf_setup_backup(const struct mf_setup_options *o)
{
    char database[MF_SETUP_PATH_MAX], why[512] = "";
    int64_t bytes;
    mf_format(database, sizeof(database), "%s/farm.db", o->state);
    int r = mf_store_backup(database, o->backup, &bytes, why, sizeof(why));
    if (r < 0)
        return log_reason(r, "backup", why);
    log_info("%s: %" PRId64 " bytes", o->backup, bytes);
    return 0;
}
