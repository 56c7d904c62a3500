#include "cli/support/release.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/text.h"

int mf_release_find(struct mf_cli *cli, const char *word, int64_t *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    char path[MF_RELEASE_PATH_MAX];
    int code;

    *ret = 0;
    if (mf_parse_i64(word, 1, INT64_MAX, ret) == 0)
        return 0;
    if (!mf_is_name(word, MF_RELEASE_WORD_MAX))
        return mf_cli_fail(MF_EXIT_USAGE, "'%s' is not the number or name of a release", word);
    mf_format(path, sizeof(path), "/api/v1/releases?limit=1&name=%s", word);
    code = mf_api_get(cli, path, &answer);
    if (code != 0)
        return code;
    *ret = mf_api_i64(cJSON_GetArrayItem(mf_json_array(answer, "items"), 0), "id", 0);
    return *ret ? 0
                : mf_cli_fail(MF_EXIT_USAGE, "unknown release '%s'; moefarm release list lists the releases",
                              word);
}

int mf_release_check_reply(struct mf_cli *cli, const struct mf_http_reply *reply, cJSON **ret_release)
{
    _cleanup_(cJSON_Deletep) cJSON *release = NULL;
    char path[MF_API_PATH_MAX], hash[MF_SHA256_TEXT_MAX];
    int64_t id = strtoll(reply->release, NULL, 10);

    mf_api_path(path, "/api/v1/releases/{}", id);
    int code = mf_api_get(cli, path, &release);
    if (code != 0)
        return code;
    mf_sha256_print(reply->body.data, reply->body.len, hash);
    if (strcmp(mf_api_text(release, "sha256", ""), hash) != 0)
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "the reply is not the content of release %" PRId64
                           ": its SHA-256 is %s; check for a proxy that changes or caches replies",
                           id, hash);
    if (ret_release)
        *ret_release = MF_TAKE(release);
    return 0;
}
