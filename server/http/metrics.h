/* Prometheus text format, and the counters of the HTTP thread. Label values come from fixed sets (routes,
 * codes, states, phases) or are the farm's workers, so the number of time series is bounded. */
#pragma once

#include <stdint.h>

#include "common/base/buf.h"

/* Maximum number of routes, plus one for requests that match no route. */
#define MF_HTTP_ROUTES_MAX 96

#define MF_HTTP_CODES_MAP(X) \
    X(200)                   \
    X(201)                   \
    X(304) X(400) X(401) X(403) X(404) X(405) X(406) X(409) X(413) X(415) X(421) X(422) X(429) X(500) X(503)
#define MF_HTTP_CODE_ONE_(code) +1
#define MF_HTTP_N_CODES         (0 MF_HTTP_CODES_MAP(MF_HTTP_CODE_ONE_))

struct mf_http_counters {
    /* wall-clock time of the process start, in ms since 1970 */
    int64_t start_ms;
    uint64_t requests[MF_HTTP_ROUTES_MAX][MF_HTTP_N_CODES + 1]; /* last column: any other code */
    /* total time from the first byte read until the response was queued */
    double seconds[MF_HTTP_ROUTES_MAX];
};

/* Status codes that have their own counter. */
extern const int mf_http_codes[MF_HTTP_N_CODES];

/* Counts a request. route: index into mf_routes(), -1 if no route matched. seconds: duration of the request.
 */
void mf_http_count(struct mf_http_counters *c, int route, int status, double seconds);

enum mf_metric_type { MF_METRIC_GAUGE, MF_METRIC_COUNTER, MF_METRIC_HISTOGRAM };
/* Appends the HELP and TYPE lines. Call once per metric, before its samples. */
void mf_metric_head(struct mf_buf *out, const char *name, enum mf_metric_type type, const char *help);
/* Appends a label value, escaped. */
void mf_metric_label(struct mf_buf *out, const char *value);
