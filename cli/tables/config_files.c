#include "cli/tables/config_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/support/api.h"
#include "cli/support/file.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/triton/triton_key.h"

#define FOLDER_MAX 4096
#define LINES_MAX  20 /* maximum number of rows left out that are printed */

bool mf_has_config_files(const char *consumer)
{
    enum mf_framework framework;

    return consumer && mf_framework_parse(consumer, &framework) == 0;
}

bool mf_config_path_ok(const char *path)
{
    for (const char *at = path;;) {
        size_t n = strcspn(at, "/");

        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        if (at[n] == '\0')
            return true;
        at += n + 1;
    }
}

/* Creates the folders of the path. */
static int make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(errno));
        *slash = '/';
    }
    return 0;
}

static int write_one(const char *folder, const cJSON *file)
{
    char path[FOLDER_MAX];
    int n = snprintf(path, sizeof(path), "%s/%s", folder, file->string);

    if (n >= (int)sizeof(path))
        return mf_cli_fail(MF_EXIT_USAGE, "%.200s…: the path is too long; choose a shorter one", folder);
    int code = make_folders(path);
    return code != 0 ? code : mf_file_write(path, file->valuestring, strlen(file->valuestring));
}

int mf_config_files_check(const cJSON *configs)
{
    const cJSON *files = mf_json_object(configs, "files"), *file;

    if (!files)
        return mf_cli_fail(MF_EXIT_UNREACHED, "the reply has no files; check that the URL is moefarmd's");
    cJSON_ArrayForEach (file, files) {
        if (!cJSON_IsString(file) || !mf_config_path_ok(file->string))
            return mf_cli_fail(
                MF_EXIT_UNREACHED,
                "the reply has a file with the path '%.200s', which is not below the folder; check "
                "that the URL is moefarmd's",
                file->string);
    }
    return 0;
}

int mf_config_files_write(const char *folder, const cJSON *configs, size_t *ret_n)
{
    const cJSON *file;
    int code = mf_config_files_check(configs);

    *ret_n = 0;
    if (code != 0)
        return code;
    cJSON_ArrayForEach (file, mf_json_object(configs, "files")) {
        code = write_one(folder, file);
        if (code != 0)
            return code;
        ++*ret_n;
    }
    return 0;
}

void mf_config_files_print_use(const char *folder, const cJSON *configs)
{
    const char *variable = mf_api_text(configs, "variable", "");
    bool replaces = strcmp(mf_api_text(configs, "consumer", ""), "sglang") == 0;

    printf("start the server with %s=%s%s\n", variable, folder,
           replaces ? " (the folder replaces all packaged files, so each MoE layer needs a file here)" : "");
}

void mf_config_files_print_left_out(const cJSON *configs)
{
    const cJSON *list = mf_json_array(configs, "left_out"), *row;
    int n = 0;

    cJSON_ArrayForEach (row, list) {
        if (n++ < LINES_MAX)
            fprintf(stderr, "left out: %s on %s: %s\n", mf_api_text(row, "shape", ""),
                    mf_api_text(row, "class", ""), mf_api_text(row, "reason", ""));
    }
    if (n > LINES_MAX)
        fprintf(stderr, "… and %d more; moefarm export --left-out --consumer %s lists them\n", n - LINES_MAX,
                mf_api_text(configs, "consumer", ""));
}
