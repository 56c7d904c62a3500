/* moefarm token */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "common/base/json.h"
#include "common/base/secret.h"
#include "common/base/text.h"

static int keep(const char *path, const char *token)
{
    char line[MF_TOKEN_TEXT_MAX + 1];
    int r;

    mf_format(line, sizeof(line), "%s\n", token);
    r = mf_secret_file_write(path, line);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s; the token is made, but nobody has it: revoke it", path,
                           strerror(-r));
    return MF_EXIT_OK;
}

int mf_cmd_token(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    _cleanup_(mf_buf_release) struct mf_buf path;
    const char *into = "", *token;
    int64_t expires_s = -1;
    char number[24];
    const struct mf_opt opts[] = {
        {.name = "expires-s",
         .type = MF_OPT_INT,
         .value = &expires_s,
         .argument = "S",
         .help = "seconds that it stands, 0: for ever (default: a worker's 3600, others 0)",
         .min = 0,
         .max = INT64_C(400) * 24 * 3600},
        {.name = "o",
         .type = MF_OPT_TEXT,
         .value = &into,
         .argument = "FILE",
         .help = "write it there, mode 0600, instead of printing it"},
    };
    int rest, r, code;

    mf_buf_init(&path, 4096);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 2, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    mf_format(number, sizeof(number), "%" PRId64, expires_s);
    (void)mf_buf_adds(&path, "/api/v1/tokens");
    mf_http_query(&path, "role", argv[rest]);
    mf_http_query(&path, "name", argv[rest + 1]);
    mf_http_query(&path, "expires_s", expires_s >= 0 ? number : NULL);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "token: the words are too long");
    code = mf_api_post(cli, path.data, &answer);
    if (code != 0)
        return code;
    token = mf_api_text(answer, "token", "");
    if (*into)
        return keep(into, token);
    if (cli->json)
        return mf_api_print(answer);
    printf("%s\n", token);
    return MF_EXIT_OK;
}
