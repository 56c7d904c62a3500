#include "common/moe/pipeline_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/family_name.h"

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

int mf_pipeline_text_current(const char *text, char *buf, size_t cap)
{
    char family[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
    const char *at = text, *name;
    size_t len, end = 0;

    while (mf_pipeline_text_next(&at, &name, &len)) {
        bool is_split = mf_step_name_split(name, len, family, step) == 0;
        int n = is_split ? snprintf(buf + end, cap - end, "%s%s:%s", name > text ? "|" : "",
                                    mf_family_current_name(family), step)
                         : snprintf(buf + end, cap - end, "%s%.*s", name > text ? "|" : "", (int)len, name);
        if (n < 0 || (size_t)n >= cap - end)
            return -ENAMETOOLONG;
        end += (size_t)n;
    }
    return 0;
}

static bool name_equal(const char *a, size_t a_len, const char *b, size_t b_len)
{
    char family[2][MF_FAMILY_NAME_MAX], step[2][MF_STEP_NAME_MAX];

    if (a_len == b_len && memcmp(a, b, a_len) == 0)
        return true;
    return mf_step_name_split(a, a_len, family[0], step[0]) == 0 &&
           mf_step_name_split(b, b_len, family[1], step[1]) == 0 && strcmp(step[0], step[1]) == 0 &&
           strcmp(mf_family_current_name(family[0]), mf_family_current_name(family[1])) == 0;
}

bool mf_pipeline_text_equal(const char *a, const char *b)
{
    const char *of_a, *of_b;
    size_t len_a, len_b;

    while (a && b) {
        (void)mf_pipeline_text_next(&a, &of_a, &len_a);
        (void)mf_pipeline_text_next(&b, &of_b, &len_b);
        if (!name_equal(of_a, len_a, of_b, len_b))
            return false;
    }
    return !a && !b;
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
