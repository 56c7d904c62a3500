#include "common/moe/device_class.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

/* Greater than the cu_num of every device, but so small that 2 * cu_num does not overflow. */
#define CU_NUM_MAX 1000000

int mf_device_class_parse(const char *text, struct mf_device_class *ret)
{
    struct mf_device_class c = {0};
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_.-");
    /* a name does not begin with a dot or dash */
    if (len == 0 || *text == '.' || *text == '-' || len >= sizeof(c.gfx) || text[len] != '/')
        return -EINVAL;
    int64_t cu_num;
    if (mf_parse_i64(text + len + 1, 1, CU_NUM_MAX, &cu_num) < 0)
        return -EINVAL;

    memcpy(c.gfx, text, len);
    c.cu_num = (int)cu_num;
    *ret = c;
    return 0;
}

void mf_device_class_print(const struct mf_device_class *c, char buf[MF_DEVICE_CLASS_TEXT_MAX])
{
    mf_format(buf, MF_DEVICE_CLASS_TEXT_MAX, "%s/%d", c->gfx, c->cu_num);
}

bool mf_device_class_equal(const struct mf_device_class *a, const struct mf_device_class *b)
{
    return a->cu_num == b->cu_num && strcmp(a->gfx, b->gfx) == 0;
}

bool mf_device_class_is_cpu(const struct mf_device_class *c)
{
    return strncmp(c->gfx, "cpu-", strlen("cpu-")) == 0;
}

const char *mf_gfx_of_cu_num(int cu_num)
{
    switch (cu_num) {
    case 256:
        return "gfx950";
    case 80:
    case 304:
        return "gfx942";
    default:
        return NULL;
    }
}
