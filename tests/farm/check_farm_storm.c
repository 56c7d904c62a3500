/* Sends SIGKILL to the coordinator, a worker or a runner at random moments while batches run. Every batch
 * must end, and the database must pass the audit. The test prints its seed; set MOEFARM_SEED to that seed to
 * reproduce a run.
 *
 *     check_farm_storm          20 kills
 *     check_farm_storm 200      200 kills */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "support/farm/farm_audit.h"
#include "support/mf_check.h"

#define BEAT_MS             150
#define N_WORKERS           2
#define RESULTS_BETWEEN_MAX 25 /* maximum number of results between two kills */

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64) FARM_CSV_FP8;

static struct farm farm;
static int n_kills = 20;
static unsigned seed;

static void start_worker(int place)
{
    char device[160];
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d:%s/spec.json", place, farm.folder);
    const char *const args[] = {"--device", device, NULL};
    farm_start_worker(&farm, place, args);
}

static void kill_at_random(struct farm_keys *kept)
{
    int place = rand_r(&seed) % N_WORKERS;
    switch (rand_r(&seed) % 4) {
    case 0:
        farm_kill_daemon(&farm);
        farm_start_daemon(&farm, BEAT_MS);
        break;
    case 1:
        farm_kill_worker(&farm, place);
        farm_read_spool(&farm, place, kept);
        start_worker(place);
        break;
    case 2: /* kills the coordinator and a worker at the same time */
        farm_kill_daemon(&farm);
        farm_kill_worker(&farm, place);
        farm_read_spool(&farm, place, kept);
        start_worker(place);
        farm_start_daemon(&farm, BEAT_MS);
        break;
    default:
        farm_kill_runner(&farm, place);
        break;
    }
}

MF_TEST(storm)
{
    _cleanup_(farm_keys_release) struct farm_keys kept = {0};
    int n = 0, n_batches = 0;
    const char *text = getenv("MOEFARM_SEED");
    seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)mf_now_ns();
    (void)printf("storm: seed %u, %d kills\n", seed, n_kills);
    (void)fflush(stdout);
    farm_start(&farm, BEAT_MS);
    (void)farm_file(&farm, "spec.json", "{\"step_ms\":1}");
    for (int place = 0; place < N_WORKERS; place++)
        start_worker(place);
    farm_wait_workers(&farm, N_WORKERS);
    while (n < n_kills) {
        char query[64];
        (void)snprintf(query, sizeof(query), "&classes=gfx942/304&seed=%d", ++n_batches);
        int batch = farm_submit(&farm, csv, query);
        for (; n < n_kills && farm_wait_more(&farm, batch, rand_r(&seed) % RESULTS_BETWEEN_MAX); n++)
            kill_at_random(&kept);
        farm_wait_done(&farm, batch);
    }
    farm_wait_spools(&farm);
    for (int batch = 1; batch <= n_batches; batch++)
        farm_audit(&farm, batch, &kept);
    (void)printf("storm: %d batches, %zu results in spools of killed workers, %ld late, %ld in quarantine\n",
                 n_batches, kept.n, farm_query_number(&farm, "SELECT count(*) FROM result WHERE late"),
                 farm_query_number(&farm, "SELECT count(*) FROM quarantine"));
}

static void stop_farm(void)
{
    farm_stop(&farm);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        n_kills = (int)strtol(argv[1], NULL, 10);
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120 + 5 * n_kills, .teardown = stop_farm});
}
