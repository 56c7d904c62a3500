/* Starts and stops the parts of moefarmd: its state folder, addresses, keys, TLS files and threads.
 *
 * Each step logs its own failure (what failed, the value, what to do) and returns 0 or -errno. */
#pragma once

#include "common/base/notify.h"
#include "server/farm/farm.h"
#include "server/http/http.h"
#include "server/http/reader.h"

#define MF_SETUP_ADDRESS_MAX  256
#define MF_SETUP_ENDPOINT_MAX 300
#define MF_SETUP_PATH_MAX     4096

/* Options of the command line. Texts are "" if not given. */
struct mf_setup_options {
    const char *state, *backup, *http, *hub, *port_file, *log_level, *tls_certificate, *tls_key;
    int64_t beat_ms, readers, attempts, http_rate, tune_misses_s;
    double unit_s, race_s, lease_max_s, samples_days;
    bool keys, tokens, plain_http;
};

/* Everything that the steps of a start have created. mf_setup_stop releases it, even if only some of the
 * steps succeeded. */
struct mf_setup {
    int lock_fd, signal_fd; /* -1: none */
    char database[MF_SETUP_PATH_MAX];
    char http_address[MF_SETUP_ADDRESS_MAX];
    int http_port;                            /* requested port; 0: any free port */
    char hub_endpoint[MF_SETUP_ENDPOINT_MAX]; /* requested ZeroMQ endpoint */
    bool is_new;                              /* the database did not exist before */
    bool needs_tokens;                        /* the API requires access tokens */
    bool needs_keys;                          /* workers need an enrolled key */
    struct mf_key_pair keys;                  /* key pair of the hub, if needs_keys */
    char *tls_certificate, *tls_key;          /* PEM texts; NULL: plain HTTP */
    struct mf_notify notify;                  /* systemd */
    void *zmq;
    struct mf_farm *farm;
    struct mf_readers *readers;
    struct mf_http *http;
};

#define MF_SETUP_INIT                                         \
    {                                                         \
        .lock_fd = -1, .signal_fd = -1, .notify = {.fd = -1 } \
    }

/* Reads both addresses. Beyond loopback, tokens, keys and TLS (or --plain-http) are required, because a peer
 * that reaches an open port could run code on the workers. */
int mf_setup_addresses(struct mf_setup *s, const struct mf_setup_options *o);
int mf_setup_tls(struct mf_setup *s, const struct mf_setup_options *o);
/* Connects to the service manager, if NOTIFY_SOCKET names one. */
int mf_setup_notify(struct mf_setup *s);
/* Creates the state folder if it is missing, and locks it, because only one moefarmd may use a folder. The
 * lock ends with the process. */
int mf_setup_state(struct mf_setup *s, const struct mf_setup_options *o);
/* Reads the hub's key pair from <state>/hub.key, or creates it at the first start. Enrolled workers remember
 * the public key. */
int mf_setup_hub_keys(struct mf_setup *s, const struct mf_setup_options *o);
/* Routes SIGTERM and SIGINT to signal_fd. Call before any thread starts, because threads inherit the signal
 * mask. */
int mf_setup_signals(struct mf_setup *s);
int mf_setup_farm(struct mf_setup *s, const struct mf_setup_options *o);
int mf_setup_readers(struct mf_setup *s, const struct mf_setup_options *o);
int mf_setup_http(struct mf_setup *s, const struct mf_setup_options *o);
/* If --port-file is given, writes the lines http=PORT and hub=PORT to that file and renames it into place. */
int mf_setup_port_file(struct mf_setup *s, const struct mf_setup_options *o);

void mf_setup_stop(struct mf_setup *s);

/* Implements moefarmd --backup FILE: copies the database of the state folder, which may be in use. */
int mf_setup_backup(const struct mf_setup_options *o);
