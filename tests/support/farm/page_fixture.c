/* Serves the fixture's farm on a port, for viewing the page and for the browser test. Prints "port N". Ends
 * at the end of standard input. Each line of input is one of
 *
 *   progress   measures three more steps of task 10 and publishes the event
 *   unstable   makes the time of task 5 unstable and publishes the event
 *   finish     ends the batch
 *   hostile    replaces every text from users and workers by markup */
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARKUP(column) #column " = '<img src=x onerror=\"window.owned=true\"><b>' || " #column

/* clang-format off */
static const char hostile[] =
    "UPDATE batch SET " MARKUP(name) ";"
    "UPDATE worker SET " MARKUP(name) "," MARKUP(host) "," MARKUP(version) "," MARKUP(step) ","
    MARKUP(sandbox) ";"
    "UPDATE device_model SET " MARKUP(name) ";"
    "UPDATE task SET " MARKUP(reason) ";"
    "UPDATE kernel SET " MARKUP(name) ";"
    "UPDATE rejection SET " MARKUP(reason) "," MARKUP(kernel) "," MARKUP(rule) ";"
    "UPDATE result SET " MARKUP(reason) ";"
    "UPDATE config SET " MARKUP(unstable) ";"
    "UPDATE pipeline SET " MARKUP(structure) "," MARKUP(layout) ";"
    "UPDATE strike SET " MARKUP(reason) ";"
    "UPDATE quarantine SET " MARKUP(reason);
/* clang-format on */

MF_TEST(test_serve)
{
    const char *port = getenv("PAGE_FIXTURE_PORT");
    struct http_harness *h = http_harness_start(
        &(struct http_harness_options){.fixture = true, .http.port = port ? atoi(port) : 0});
    char line[64];
    printf("port %d\n", http_harness_port(h));
    (void)fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        if (strncmp(line, "progress", 8) == 0)
            http_harness_event(h, 2, "task",
                               "{\"batch\":2,\"task\":10,\"state\":\"probing\",\"steps\":79,\"measured\":60,"
                               "\"reason\":\"\"}",
                               "UPDATE task SET n_measured = min(n_steps, n_measured + 3) WHERE id = 10");
        else if (strncmp(line, "unstable", 8) == 0)
            http_harness_event(h, 1, "config",
                               "{\"batch\":1,\"task\":5,\"us\":60,\"unstable\":\"it scatters\"}",
                               "UPDATE config SET unstable = 'it scatters', tries = 3 WHERE task = 5");
        else if (strncmp(line, "search", 6) == 0)
            http_harness_event(h, 1, "task",
                               "{\"batch\":1,\"task\":5,\"state\":\"done\",\"candidates\":1920,"
                               "\"steps\":150,\"measured\":150,\"reason\":\"\"}",
                               "UPDATE task SET n_candidates = 1920, n_steps = 150, n_measured = 150"
                               " WHERE id = 5");
        else if (strncmp(line, "hostile", 7) == 0)
            http_harness_event(
                h, 2, "worker",
                "{\"worker\":1,\"name\":\"<b>\",\"state\":\"<i>\",\"unit\":0,\"step\":\"<u>\"}", hostile);
        else if (strncmp(line, "finish", 6) == 0)
            http_harness_event(
                h, 2, "batch", "{\"batch\":2,\"state\":\"done\"}",
                "UPDATE batch SET state = 'done', ended_ms = created_ms + 600000 WHERE id = 2");
    }
    http_harness_stop(h);
}

/* The fixture must live until its input ends, so it runs in this process, which has no time limit. */
int main(void)
{
    return setenv("CK_FORK", "no", 1) == 0 ? mf_check_main(NULL) : EXIT_FAILURE;
}
