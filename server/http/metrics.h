/* Prometheus text exposition, and the counters that the HTTP thread keeps for it. Labels come from fixed sets
 * (routes, codes, states, phases) or from the farm's own workers, so the number of series is bounded. */
#pragma once

#include <stdint.h>

#include "common/base/buf.h"

/* More routes than the table has, plus one for requests that match none. */
#define MF_HTTP_ROUTES_MAX 96

#define MF_HTTP_CODES_MAP(X) \
    X(200)                   \
    X(201)                   \
    X(304) X(400) X(401) X(403) X(404) X(405) X(406) X(409) X(413) X(415) X(421) X(422) X(429) X(500) X(503)
#define MF_HTTP_CODE_ONE_(code) +1
#define MF_HTTP_N_CODES         (0 MF_HTTP_CODES_MAP(MF_HTTP_CODE_ONE_))

struct mf_http_counters {
    int64_t start_ms;                                           /* of the process, wall clock */
    uint64_t requests[MF_HTTP_ROUTES_MAX][MF_HTTP_N_CODES + 1]; /* the last: any other code */
    double seconds[MF_HTTP_ROUTES_MAX];                         /* from first byte read to answer queued */
    int connections, streams, away;
};

/* route -1: no route matched. */
void mf_http_count(struct mf_http_counters *c, int route, int status, double seconds);

enum mf_metric_type { MF_METRIC_GAUGE, MF_METRIC_COUNTER, MF_METRIC_HISTOGRAM };
/* HELP and TYPE lines; each name once, before its samples. */
void mf_metric_head(struct mf_buf *out, const char *name, enum mf_metric_type type, const char *help);
/* A label's value, escaped. */
void mf_metric_label(struct mf_buf *out, const char *value);
