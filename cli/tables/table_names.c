#include "cli/tables/table_names.h"

#include <errno.h>
#include <string.h>

#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "kernels/aiter/aiter.h"
#include "kernels/aiter/aiter_lists.h"
#include "kernels/core/family.h"

#define EXCERPT 80 /* maximum length of a name in a message */

static bool set_problem(struct mf_check_name *ret, enum mf_problem_code code, const char *column)
{
    ret->code = code;
    ret->column = column;
    return true;
}

static bool step_is_wrong(const char *text, size_t len, struct mf_check_name *ret)
{
    char family[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];

    if (mf_step_name_split(text, len, family, step) < 0) {
        mf_format(ret->reason, sizeof(ret->reason),
                  "pipeline has '%.*s', which is not family:step; export the row again",
                  (int)MF_MIN(len, EXCERPT), text);
        return set_problem(ret, MF_PROBLEM_KERNEL, "pipeline");
    }
    if (!mf_is_name(step, MF_STEP_NAME_MAX - 1) ||
        (strcmp(family, "aiter") == 0 && !mf_aiter_is_step(step))) {
        mf_format(ret->reason, sizeof(ret->reason),
                  "pipeline has '%.*s', which is not a kernel of family %s; tune the shape again", EXCERPT,
                  step, family);
        return set_problem(ret, MF_PROBLEM_KERNEL, "pipeline");
    }
    if (mf_family_find(NULL, family))
        return false;
    mf_format(ret->reason, sizeof(ret->reason),
              "pipeline has a step of family '%s', which this build lacks: libfmoe skips the row "
              "unless a shared object or a runner provides the family",
              family);
    return set_problem(ret, MF_PROBLEM_FOREIGN, "pipeline");
}

static bool pipeline_is_wrong(const char *pipeline, struct mf_check_name *ret)
{
    const char *name;
    size_t len;

    while (mf_pipeline_text_next(&pipeline, &name, &len)) {
        if (step_is_wrong(name, len, ret))
            return true;
    }
    return false;
}

/* Fills *ret for a name that the lists do not have. */
static bool set_unlisted(const struct mf_aiter_lists *lists, enum mf_aiter_known known, const char *name,
                         const char *column, struct mf_check_name *ret)
{
    char version[MF_AITER_VERSION_MAX];

    mf_aiter_lists_version(lists, version);
    if (known == MF_AITER_NEWER) {
        mf_format(
            ret->reason, sizeof(ret->reason),
            "%s '%.*s': not known to this build (AITER %s); an AITER that lacks the kernel falls back to its "
            "heuristic or throws%s",
            column, EXCERPT, name, version,
            lists->own ? "" : ". Check with --aiter-dir and the folder of your AITER");
        return set_problem(ret, MF_PROBLEM_UNLISTED, column);
    }
    if (lists->own)
        mf_format(
            ret->reason, sizeof(ret->reason),
            "%s '%.*s': not a kernel of the AITER in %s; production falls back to its heuristic or throws. "
            "Tune the shape again",
            column, EXCERPT, name, version);
    else
        mf_format(ret->reason, sizeof(ret->reason),
                  "%s '%.*s': not an AITER kernel name; production falls back to its heuristic or "
                  "throws. Tune the shape again",
                  column, EXCERPT, name);
    return set_problem(ret, MF_PROBLEM_KERNEL, column);
}

static bool kernel_is_wrong(const struct mf_table_row *row, const struct mf_aiter_lists *lists,
                            const char *name, const char *column, struct mf_check_name *ret)
{
    char why[MF_REASON_MAX - EXCERPT - 64];
    enum mf_aiter_known known = mf_aiter_name_known(lists, name);

    if (mf_table_no_kernel(name))
        return false;
    if (known != MF_AITER_KNOWN)
        return set_unlisted(lists, known, name, column, ret);
    if (!mf_aiter_launch_refuses(&row->shape, name, why, sizeof(why)))
        return false;
    mf_format(ret->reason, sizeof(ret->reason), "%s '%.*s': %s; tune the shape again", column, EXCERPT, name,
              why);
    return set_problem(ret, MF_PROBLEM_KERNEL, column);
}

bool mf_table_name_wrong(const struct mf_table_row *row, const void *data, struct mf_check_name *ret)
{
    const struct mf_aiter_lists *lists = data ? data : mf_aiter_lists_builtin();
    const char *pipeline = row->own[MF_OWN_PIPELINE];

    if (pipeline && *pipeline)
        return pipeline_is_wrong(pipeline, ret);
    return kernel_is_wrong(row, lists, row->kernel1, "kernelName1", ret) ||
           kernel_is_wrong(row, lists, row->kernel2, "kernelName2", ret);
}
