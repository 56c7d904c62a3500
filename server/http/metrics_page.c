/* Handlers of /metrics: counters of the writer and of the HTTP thread. Metrics from the database are in
 * server/store/store_read_metrics.c. */
#include "server/api/api.h"
#include "server/farm/farm.h"
#include "server/http/http_private.h"
#include "server/http/metrics.h"
#include "server/http/problem.h"

#include <inttypes.h>

/* ---- counters of the writer ---- */

int mf_api_metrics_write(void *farm, struct mf_request *r)
{
    mf_farm_get_stats(farm, &r->stats);
    return 0;
}

static void add_counter(struct mf_buf *out, const char *name, const char *help, uint64_t value)
{
    mf_metric_head(out, name, MF_METRIC_COUNTER, help);
    mf_buf_addf(out, "%s %" PRIu64 "\n", name, value);
}

static void add_iterations(struct mf_buf *out, const struct mf_farm_stats *s)
{
    uint64_t sum = 0;
    mf_metric_head(out, "moefarm_iteration_duration_seconds", MF_METRIC_HISTOGRAM,
                   "Duration of one event loop iteration of the writer, including its commit.");
    for (int i = 0; i < MF_ITERATION_BUCKETS; i++) {
        sum += s->iteration_buckets[i];
        mf_buf_addf(out, "moefarm_iteration_duration_seconds_bucket{le=\"%g\"} %" PRIu64 "\n",
                    mf_iteration_bucket_s[i], sum);
    }
    mf_buf_addf(out, "moefarm_iteration_duration_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n", s->iterations);
    mf_buf_addf(out, "moefarm_iteration_duration_seconds_sum %.9g\n", s->iteration_s);
    mf_buf_addf(out, "moefarm_iteration_duration_seconds_count %" PRIu64 "\n", s->iterations);
}

static void add_farm(struct mf_buf *out, const struct mf_farm_stats *s)
{
    add_iterations(out, s);
    mf_metric_head(out, "moefarm_iteration_longest_seconds", MF_METRIC_GAUGE,
                   "Duration of the longest iteration since the start.");
    mf_buf_addf(out, "moefarm_iteration_longest_seconds %.9g\n", s->iteration_max_s);
    mf_metric_head(out, "moefarm_store_read_only", MF_METRIC_GAUGE,
                   "1 while the database is not writable; changes and results are then refused.");
    mf_buf_addf(out, "moefarm_store_read_only %d\n", s->read_only);
    add_counter(out, "moefarm_messages_total", "Messages received from workers.", s->messages);
    add_counter(out, "moefarm_results_committed_total", "Results committed.", s->results);
    add_counter(out, "moefarm_results_repeated_total", "Duplicate results, acknowledged again.",
                s->results_duplicate);
    add_counter(out, "moefarm_results_late_total",
                "Results received after their lease ended, kept as samples only.", s->results_late);
    add_counter(out, "moefarm_messages_refused_total", "Messages answered by REFUSE.", s->refused);
    add_counter(out, "moefarm_messages_undone_total",
                "Refused messages that passed all checks but could not be stored.", s->undone);
    add_counter(out, "moefarm_handshakes_refused_total", "Worker handshakes with an unknown or revoked key.",
                s->handshakes_refused);
    add_counter(out, "moefarm_leases_expired_total", "Leases that expired because their worker was silent.",
                s->leases_expired);
    add_counter(out, "moefarm_events_total", "Events published.", s->events);
}

/* ---- counters of the HTTP thread ---- */

static void add_requests(struct mf_buf *out, const struct mf_http_counters *c)
{
    size_t n_routes;
    const struct mf_route *routes = mf_routes(&n_routes);
    mf_metric_head(out, "moefarm_http_requests_total", MF_METRIC_COUNTER,
                   "Requests answered, by route and status code.");
    for (size_t i = 0; i < MF_HTTP_ROUTES_MAX; i++) {
        for (size_t j = 0; j <= MF_HTTP_N_CODES; j++) {
            if (c->requests[i][j] == 0)
                continue;
            mf_buf_addf(out, "moefarm_http_requests_total{method=\"%s\",route=\"%s\",code=\"",
                        i < n_routes ? routes[i].method : "any", i < n_routes ? routes[i].path : "none");
            if (j < MF_HTTP_N_CODES)
                mf_buf_addf(out, "%d", mf_http_codes[j]);
            else
                mf_buf_adds(out, "other");
            mf_buf_addf(out, "\"} %" PRIu64 "\n", c->requests[i][j]);
        }
    }
    mf_metric_head(out, "moefarm_http_request_seconds_total", MF_METRIC_COUNTER,
                   "Time from request headers to queued response, by route.");
    for (size_t i = 0; i < n_routes; i++)
        if (c->seconds[i] > 0)
            mf_buf_addf(out, "moefarm_http_request_seconds_total{method=\"%s\",route=\"%s\"} %.9g\n",
                        routes[i].method, routes[i].path, c->seconds[i]);
}

static void add_gauge(struct mf_buf *out, const char *name, const char *help, double value)
{
    mf_metric_head(out, name, MF_METRIC_GAUGE, help);
    mf_buf_addf(out, "%s %.17g\n", name, value);
}

static int count_connections(const struct mf_http *h)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info ? (int)info->num_connections : 0;
}

int mf_api_metrics_http(void *http, struct mf_request *r)
{
    const struct mf_http *h = http;
    struct mf_buf *out = &r->response.body;

    mf_metric_head(out, "moefarm_build_info", MF_METRIC_GAUGE, "Always 1; the label has the version.");
    mf_buf_addf(out, "moefarm_build_info{version=\"%s\"} 1\n", MF_VERSION);
    add_gauge(out, "moefarm_start_time_seconds", "Process start time, in seconds since 1970.",
              (double)h->counters.start_ms / 1e3);
    add_farm(out, &r->stats);
    add_requests(out, &h->counters);
    add_gauge(out, "moefarm_http_connections", "Connections open now.", count_connections(h));
    add_gauge(out, "moefarm_http_streams", "Event streams open now.", h->n_streams);
    add_gauge(out, "moefarm_http_requests_waiting", "Requests waiting for the writer or a reader now.",
              h->n_forwarded);
    if (mf_buf_error(out) < 0)
        return mf_refuse_errno(&r->response, mf_buf_error(out), "write the metrics");
    r->response.status = 200;
    r->response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return 0;
}
