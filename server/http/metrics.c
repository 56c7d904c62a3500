#include "server/http/metrics.h"

#define CODE(code) code,
const int mf_http_codes[MF_HTTP_N_CODES] = {MF_HTTP_CODES_MAP(CODE)};

void mf_http_count(struct mf_http_counters *c, int route, int status, double seconds)
{
    size_t code = 0;
    int row = route >= 0 && route < MF_HTTP_ROUTES_MAX - 1 ? route : MF_HTTP_ROUTES_MAX - 1;
    while (code < MF_HTTP_N_CODES && mf_http_codes[code] != status)
        code++;
    c->requests[row][code]++;
    c->seconds[row] += seconds;
}

void mf_metric_head(struct mf_buf *out, const char *name, enum mf_metric_type type, const char *help)
{
    static const char *const types[] = {"gauge", "counter", "histogram"};
    mf_buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, types[type]);
}

void mf_metric_label(struct mf_buf *out, const char *value)
{
    for (const char *p = value; *p; p++) {
        if (*p == '\\' || *p == '"')
            mf_buf_addf(out, "\\%c", *p);
        else if (*p == '\n')
            mf_buf_adds(out, "\\n");
        else
            mf_buf_add(out, p, 1);
    }
}
