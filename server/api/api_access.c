/* Writer handlers of tokens and worker keys. */
#include "server/api/api.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/farm/access.h"
#include "server/http/problem.h"

#include <errno.h>
#include <inttypes.h>

#define ENROLMENT_EXPIRES_S 3600 /* short, because an unused enrolment token is a risk */
#define EXPIRES_MAX_S       (INT64_C(400) * 24 * 3600)

static int read_token_request(struct mf_request *r, struct mf_token_request *ret)
{
    const char *role = mf_request_query(r, "role"), *text = mf_request_query(r, "expires_s");
    struct mf_token_request wish = {.name = mf_request_query(r, "name")};
    if (!role || mf_role_parse(role, &wish.role) < 0 || wish.role == MF_ROLE_NONE)
        return mf_refuse_at(&r->response, 400, "role", role ? "value" : "missing",
                            "role: expected read, submit, admin or worker");
    if (!wish.name || !mf_is_name(wish.name, MF_TOKEN_NAME_MAX - 1))
        return mf_refuse_at(&r->response, 400, "name", wish.name ? "value" : "missing",
                            "name: expected 1 to 63 letters, digits, '.', '_' or '-'");
    int64_t seconds = wish.role == MF_ROLE_WORKER ? ENROLMENT_EXPIRES_S : 0;
    if (text && mf_parse_i64(text, 0, EXPIRES_MAX_S, &seconds) < 0)
        return mf_refuse_at(&r->response, 400, "expires_s", "range",
                            "expires_s: expected 0 (never) to %" PRId64 " seconds", EXPIRES_MAX_S);
    wish.expires_ms = seconds ? mf_wall_ms() + seconds * 1000 : 0;
    *ret = wish;
    return 0;
}

int mf_api_token_add(void *farm, struct mf_request *r)
{
    struct mf_token_request wish;
    char text[MF_TOKEN_TEXT_MAX];
    int64_t id;
    if (read_token_request(r, &wish) < 0)
        return -EINVAL;
    int e = mf_farm_token_add(farm, &wish, &id, text);
    if (e == -ENOTSUP)
        return mf_refuse(
            &r->response, 409,
            "workers of this farm need no key: moefarmd listens on loopback and runs without --keys");
    if (e == -EACCES)
        return mf_refuse(
            &r->response, 409,
            "this farm requires no tokens, so anybody could create one; start moefarmd with --tokens "
            "and use the token in admin.token of its state folder");
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "create the token");
    cJSON *o = cJSON_CreateObject();
    mf_json_add_i64(o, "id", id);
    cJSON_AddStringToObject(o, "role", mf_role_name(wish.role));
    cJSON_AddStringToObject(o, "name", wish.name);
    mf_json_add_i64(o, "expires_ms", wish.expires_ms);
    cJSON_AddStringToObject(o, "token", text);
    return mf_respond_json(&r->response, 201, o);
}

static int answer_revoked(struct mf_request *r, int e, const char *what)
{
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "there is no valid %s %" PRId64, what, r->path_id[0]);
    return e < 0 ? mf_refuse_errno(&r->response, e, "revoke the token or key")
                 : mf_respond_state(&r->response, "revoked");
}

int mf_api_token_revoke(void *farm, struct mf_request *r)
{
    return answer_revoked(r, mf_farm_token_revoke(farm, r->path_id[0]), "token");
}

int mf_api_key_revoke(void *farm, struct mf_request *r)
{
    return answer_revoked(r, mf_farm_key_revoke(farm, r->path_id[0]), "key");
}
