#include "common/moe/pipeline_text.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

bool mf_pipeline_text_next(const char **at, const char **ret_name, size_t *ret_len)
{
    if (!*at)
        return false;
    *ret_name = *at;
    *ret_len = strcspn(*at, "|");
    *at = (*at)[*ret_len] ? *at + *ret_len + 1 : NULL;
    return true;
}

int mf_step_name_split(const char *name, size_t len, char ret_family[MF_FAMILY_NAME_MAX],
                       char ret_step[MF_STEP_NAME_MAX])
{
    const char *colon = memchr(name, ':', len);
    size_t n_family = colon ? (size_t)(colon - name) : 0, n_step = colon ? len - n_family - 1 : 0;

    if (!colon)
        return -EINVAL;
    if (n_family >= MF_FAMILY_NAME_MAX || n_step >= MF_STEP_NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(ret_family, name, n_family);
    memcpy(ret_step, colon + 1, n_step);
    ret_family[n_family] = ret_step[n_step] = '\0';
    return 0;
}

int mf_pipeline_text_add(char *text, size_t cap, const char *family, const char *step)
{
    size_t len = strlen(text), needed = (len > 0) + strlen(family) + 1 + strlen(step) + 1;

    if (needed > cap - len)
        return -ENAMETOOLONG;
    mf_format(text + len, cap - len, "%s%s:%s", len > 0 ? "|" : "", family, step);
    return 0;
}

cJSON *mf_pipeline_text_json(const char *text)
{
    _cleanup_(cJSON_Deletep) cJSON *list = cJSON_CreateArray();
    const char *at = *text ? text : NULL, *name;
    size_t len;

    while (list && mf_pipeline_text_next(&at, &name, &len)) {
        _cleanup_(mf_freep) char *one = strndup(name, len);
        cJSON *item = one ? cJSON_CreateString(one) : NULL;
        if (!item || !cJSON_AddItemToArray(list, item))
            return NULL;
    }
    return MF_TAKE(list);
}
