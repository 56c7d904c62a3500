/* Files of shapes for moefarm-worker --compile-only. */
#include "worker/runner/shapes_file.h"

#include "support/mf_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/table_columns.h"

#define SHAPE \
    "2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static const struct {
    const char *text;
    int result;
    size_t n;
    int bad;
} files[] = {
    {SHAPE_COLUMNS "\n4," SHAPE "\n8," SHAPE "\n", 0, 2, 0},
    {SHAPE_COLUMNS "\n4," SHAPE "\nx," SHAPE "\n", 0, 1, 1},
    /* A row that AITER's tuner marks as failed */
    {TUNED_COLUMNS "\ngfx942,304,4," SHAPE ",16,0,-1,a,0.0%,40.0,b,0.0%,-1,0,0,0,1.0,2.0\n", 0, 1, 0},
    {"name,price\na,1\n", -EBADMSG, 0, 0},
    {"", -EBADMSG, 0, 0},
};

MF_TEST(shapes, .rows = MF_ARRAY_LEN(files))
{
    char path[] = "/tmp/check_shapes_file.XXXXXX";
    _cleanup_(mf_closep) int fd = mkstemp(path);
    _cleanup_(mf_freep) struct mf_shape *all = NULL;
    size_t n = 0;
    int bad = 0;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, files[_i].text, strlen(files[_i].text)), (ssize_t)strlen(files[_i].text));
    int r = mf_shapes_file_read(path, &all, &n, &bad);
    (void)unlink(path);
    ck_assert_int_eq(r, files[_i].result);
    ck_assert_uint_eq(n, files[_i].n);
    ck_assert_int_eq(bad, files[_i].bad);
    if (n > 0)
        ck_assert_int_eq(all[0].token, 4);
}

int main(void)
{
    return mf_check_main(NULL);
}
