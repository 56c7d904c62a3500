/* Serves the status page: files of server/page/ by path. */
#include "server/api/api.h"
#include "server/api/routes.h"
#include "server/http/problem.h"
#include "server/page/embed.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *path, *file, *type;
} files[] = {
    {"/", "index.html", "text/html; charset=utf-8"},
    {"/page/app.js", "app.js", "text/javascript; charset=utf-8"},
    {"/page/views.js", "views.js", "text/javascript; charset=utf-8"},
    {"/page/task.js", "task.js", "text/javascript; charset=utf-8"},
    {"/page/releases.js", "releases.js", "text/javascript; charset=utf-8"},
    {"/page/plots.js", "plots.js", "text/javascript; charset=utf-8"},
    {"/page/charts.js", "charts.js", "text/javascript; charset=utf-8"},
    {"/page/app.css", "app.css", "text/css; charset=utf-8"},
    {"/page/icon.svg", "icon.svg", "image/svg+xml"},
    {"/page/vendor/uPlot.iife.min.js", "vendor/uPlot.iife.min.js", "text/javascript; charset=utf-8"},
    {"/page/vendor/uPlot.min.css", "vendor/uPlot.min.css", "text/css; charset=utf-8"},
    {"/page/vendor/LICENSE", "vendor/LICENSE", "text/plain; charset=utf-8"},
};

int mf_api_page(void *http, struct mf_request *r)
{
    (void)http;
    for (size_t i = 0; i < MF_ARRAY_LEN(files); i++) {
        if (strcmp(files[i].path, r->route->path) != 0)
            continue;
        size_t len;
        const char *data = mf_embedded(files[i].file, &len);
        if (!data || mf_buf_add(&r->response.body, data, len) < 0)
            return mf_refuse_errno(&r->response, -ENOMEM, "send the page");
        r->response.status = 200;
        r->response.content_type = files[i].type;
        return mf_copy(r->response.etag, sizeof(r->response.etag), mf_embedded_etag(files[i].file));
    }
    return mf_refuse(&r->response, 404, "no such file");
}

int mf_api_healthz(void *http, struct mf_request *r)
{
    (void)http;
    r->response.status = 200;
    r->response.content_type = "text/plain; charset=utf-8";
    return mf_buf_adds(&r->response.body, "ok\n");
}
