/* moefarm tune --compare: what the comparison of each shape's new row with the known one decided. */
#include <inttypes.h>

#include "cli/api.h"
#include "cli/shape_arg.h"
#include "cli/text_out.h"
#include "cli/tune.h"
#include "common/json.h"

/* "12.40 us"; "-" where it was not measured. */
static void print_us(double us, char buf[MF_US_MAX])
{
    if (us > 0)
        mf_us(us, buf);
    else
        buf[0] = '-', buf[1] = '\0';
}

static void print_one(const cJSON *goal, struct mf_buf *out)
{
    const cJSON *promotion = mf_json_object(goal, "promotion");
    const cJSON *device = cJSON_GetArrayItem(mf_json_array(promotion, "devices"), 0);
    char brief[MF_SHAPE_BRIEF_MAX] = "", old[MF_US_MAX], new[MF_US_MAX];
    struct mf_shape shape;

    if (!promotion)
        return;
    if (mf_api_shape(mf_json_object(goal, "shape"), &shape) == 0)
        mf_shape_brief(&shape, brief);
    print_us(mf_api_double(device, "old_us", 0), old);
    print_us(mf_api_double(device, "new_us", 0), new);
    (void)mf_buf_addf(out, "%s  %s  %s: old %s, new %s", mf_api_text(promotion, "decision", ""),
                      mf_api_text(goal, "class", ""), brief, old, new);
    if (device)
        (void)mf_buf_addf(out, ", new/old - 1 in [%+.1f%%, %+.1f%%]", 100 * mf_api_double(device, "low", 0),
                          100 * mf_api_double(device, "high", 0));
    (void)mf_buf_addf(out, ": %s\n", mf_api_text(promotion, "reason", ""));
}

int mf_tune_compared(struct mf_cli *cli, const cJSON *goals, struct mf_buf *out)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, goals) {
        _cleanup_(cJSON_Deletep) cJSON *goal = NULL;
        char path[MF_API_PATH_MAX];
        mf_api_path(path, "/api/v1/goals/{}", mf_api_i64(item, "id", 0));
        int code = mf_api_get(cli, path, &goal);
        if (code != 0)
            return code;
        print_one(goal, out);
    }
    return 0;
}
