/* moefarmd: the coordinator of a farm. The main thread is the only writer of the database; the hub (messages
 * of workers), HTTP and the readers have their own threads. */
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/open_files.h"
#include "common/base/opts.h"
#include "common/base/text.h"
#include "server/setup.h"
#include "server/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

static const struct mf_setup_options defaults = {
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

/* Returns 0, 1 after printing help or the version, or -EINVAL after printing the error. */
static int read_options(int argc, char **argv, struct mf_setup_options *o)
{
    int rest = argc;
    /* clang-format off */
    const struct mf_opt opts[] = {
        {"state", MF_OPT_TEXT, &o->state, "DIR", "state folder with the database, created if missing", 0, 0},
        {"backup", MF_OPT_TEXT, &o->backup, "FILE",
         "copy the database of the state folder to this new file and exit; a running moefarmd is not"
         " disturbed",
         0, 0},
        {"http", MF_OPT_TEXT, &o->http, "ADDRESS:PORT",
         "REST API and status page; port 0: any free port", 0, 0},
        {"hub", MF_OPT_TEXT, &o->hub, "ADDRESS:PORT",
         "address that workers connect to; port 0: any free port", 0, 0},
        {"port-file", MF_OPT_TEXT, &o->port_file, "FILE",
         "file for the bound ports, written once both are open: lines http=PORT and hub=PORT", 0, 0},
        {"keys", MF_OPT_BOOL, &o->keys, NULL,
         "require enrolled keys of workers on loopback too (always required beyond loopback)", 0, 0},
        {"tokens", MF_OPT_BOOL, &o->tokens, NULL,
         "require access tokens for the API on loopback too (always required beyond loopback)", 0, 0},
        {"tls-cert", MF_OPT_TEXT, &o->tls_certificate, "FILE",
         "certificate chain for HTTPS (PEM, the server's certificate first)", 0, 0},
        {"tls-key", MF_OPT_TEXT, &o->tls_key, "FILE", "private key of --tls-cert (PEM)", 0, 0},
        {"plain-http", MF_OPT_BOOL, &o->plain_http, NULL,
         "allow HTTP without TLS beyond loopback, behind a proxy that terminates TLS", 0, 0},
        {"http-rate", MF_OPT_INT, &o->http_rate, "N",
         "requests per second of one token or address, if tokens are required; 0: no limit", 0, 1000000},
        {"beat-ms", MF_OPT_INT, &o->beat_ms, "MS",
         "heartbeat interval of workers; a lease is three intervals", 10, 600000},
        {"attempts", MF_OPT_INT, &o->attempts, "N", "leases of a work unit before it fails", 1, 1000},
        {"unit-s", MF_OPT_DOUBLE, &o->unit_s, "S", "expected duration of a probe unit in seconds", 0, 0},
        {"race-s", MF_OPT_DOUBLE, &o->race_s, "S",
         "maximum duration of a race in seconds, by forecast", 0, 0},
        {"lease-max-s", MF_OPT_DOUBLE, &o->lease_max_s, "S",
         "longest lease of a work unit in seconds; 0: derived from its forecast", 0, 0},
        {"samples-days", MF_OPT_DOUBLE, &o->samples_days, "DAYS",
         "days to keep raw samples (medians and spreads are always kept); 0: for ever", 0, 0},
        {"tune-misses", MF_OPT_INT, &o->tune_misses_s, "S",
         "every S seconds submit a batch of shapes that production missed (POST /api/v1/misses); 0: only list"
         " them",
         0, 86400},
        {"readers", MF_OPT_INT, &o->readers, "N", "threads for read requests", 1, 64},
        {"log-level", MF_OPT_TEXT, &o->log_level, "LEVEL", "error, warning, info or debug", 0, 0},
    };
    /* clang-format on */
    int r = mf_opts_parse("moefarmd [options]", opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    /* refuse arguments without dashes: if "tokens" were ignored, the farm would start without requiring
     * tokens */
    if (r == 0 && rest < argc) {
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

/* The order matters: addresses and TLS are checked before anything is written, and signals are blocked before
 * the first thread starts. */
static int start(struct mf_setup *s, const struct mf_setup_options *o)
{
    int r = mf_setup_addresses(s, o);
    if (r == 0)
        r = mf_setup_tls(s, o);
    if (r == 0)
        r = mf_setup_notify(s);
    if (r == 0)
        r = mf_setup_state(s, o);
    if (r == 0)
        r = mf_setup_hub_keys(s, o);
    if (r == 0)
        r = mf_setup_signals(s);
    if (r == 0)
        r = mf_setup_farm(s, o);
    if (r == 0)
        r = mf_setup_readers(s, o);
    if (r == 0)
        r = mf_setup_http(s, o);
    if (r == 0)
        r = mf_setup_port_file(s, o);
    return r;
}

static int run(const struct mf_setup_options *o)
{
    struct mf_setup s = MF_SETUP_INIT;
    int r = start(&s, o);
    if (r == 0) {
        mf_notify_send(&s.notify, "READY=1");
        r = mf_farm_run(s.farm, s.signal_fd, &s.notify);
        log_info(r == 0 ? "stopping on a signal" : "stopping: the database failed");
        mf_notify_send(&s.notify, "STOPPING=1");
    }
    mf_setup_stop(&s);
    return r;
}

int main(int argc, char **argv)
{
    struct mf_setup_options o = defaults;
    int r = read_options(argc, argv, &o);
    if (r != 0)
        return r > 0 ? EXIT_SUCCESS : EXIT_USAGE;
    if (set_log_level(o.log_level) < 0)
        return EXIT_USAGE;
    if (mf_fault_init() < 0) {
        (void)log_err(-EINVAL, "MOEFARM_FAULT: give NAME:N:FILE");
        return EXIT_USAGE;
    }
    r = mf_open_files_raise();
    if (r < 0)
        (void)log_err(r, "raise the limit of open files");
    mf_store_init();
    r = *o.backup ? mf_setup_backup(&o) : run(&o);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
