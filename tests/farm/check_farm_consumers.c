/* Tests rankings per consumer on a simulated device whose families `aiter` and `sim` compete. */
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"

#define ROW(token)                                                                                          \
#    token ",6144,4096,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz," \
           "QuantType.per_Token,1,0\n"
#define ROWS   FARM_CSV_HEAD ROW(16) ROW(32) ROW(64) ROW(128) ROW(512)
#define N_ROWS 5

static struct farm farm;

static void start(void)
{
    const char *const args[] = {"--device", "sim:gfx942/304:0", "--families", "aiter,sim", NULL};
    farm_start(&farm, 1000);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
}

static void stop(void)
{
    farm_stop(&farm);
}

/* Number of rows in the table of a consumer. The caller frees *ret. */
static int export_rows(int batch, const char *consumer, char **ret)
{
    char path[160];
    int n = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv?batch=%d&simulated=1&consumer=%s",
                   batch, consumer);
    *ret = farm_call(&farm, "GET", path, "text/plain", "", 200);
    for (const char *at = strchr(*ret, '\n'); at && at[1]; at = strchr(at + 1, '\n'))
        n++;
    return n;
}

/* Every shape has pipelines of AITER's kernels only, so every shape has a row for AITER, even if other
 * pipelines are faster. */
MF_TEST(aiter_gets_a_row_for_each_shape)
{
    _cleanup_(mf_freep) char *table = NULL;
    start();
    int batch = farm_run(&farm, ROWS, "&consumer=aiter");
    int n = export_rows(batch, "aiter", &table);
    ck_assert_msg(n == N_ROWS, "%d of %d rows:\n%s", n, N_ROWS, table);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 240, .teardown = stop});
}
