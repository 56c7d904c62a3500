#include "server/http/route.h"

#include "server/http/problem.h"

int mf_request_run(struct mf_request *r, void *owner)
{
    const struct mf_hop *hop = &r->route->hops[r->hop];
    int e = hop->handler(owner, r);
    if (r->deferred)
        return 0;
    if (e < 0 && r->response.status == 0)
        (void)mf_refuse_errno(&r->response, e, r->route->summary);
    /* If the hop has filled in the response, the request ends; otherwise the next hop continues. */
    r->hop++;
    if (r->response.status == 0 && (r->hop == MF_ROUTE_HOPS || r->route->hops[r->hop].owner == MF_OWNER_NONE))
        e = mf_refuse(&r->response, 500, "%s: the handler made no response", r->route->summary);
    return e;
}
