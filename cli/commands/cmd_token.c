/* moefarm token: creates a token and prints or saves it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "common/base/json.h"
#include "common/base/secret.h"
#include "common/base/text.h"

static int save_token(const char *path, const char *token)
{
    char line[MF_TOKEN_TEXT_MAX + 1];
    int r;

    mf_format(line, sizeof(line), "%s\n", token);
    r = mf_secret_file_write(path, line);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s; the new token is lost: revoke it and create another",
                           path, strerror(-r));
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
         .help = "lifetime in seconds, 0: unlimited (default: 3600 for role worker, else 0)",
         .min = 0,
         .max = INT64_C(400) * 24 * 3600},
        {.name = "o",
         .type = MF_OPT_TEXT,
         .value = &into,
         .argument = "FILE",
         .help = "output file, created with mode 0600 (default: standard output)"},
    };
    int rest, r, code;

    mf_buf_init(&path, 4096);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 2, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    mf_format(number, sizeof(number), "%" PRId64, expires_s);
    (void)mf_buf_adds(&path, "/api/v1/tokens");
    mf_http_add_query(&path, "role", argv[rest]);
    mf_http_add_query(&path, "name", argv[rest + 1]);
    mf_http_add_query(&path, "expires_s", expires_s >= 0 ? number : NULL);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "token: ROLE and NAME are too long");
    code = mf_api_post(cli, path.data, &answer);
    if (code != 0)
        return code;
    token = mf_api_text(answer, "token", "");
    if (*into)
        return save_token(into, token);
    if (cli->json)
        return mf_api_print(answer);
    printf("%s\n", token);
    return MF_EXIT_OK;
}
