# Tests of worker/
mf_add_test(check_race USES worker)
mf_add_test(check_spool USES worker)
mf_add_test(check_runner_wire USES worker)
mf_add_test(check_runner USES worker LABELS farm)
add_dependencies(check_runner moefarm-worker)
mf_add_test(check_agent USES worker LABELS farm)
add_dependencies(check_agent moefarm-worker)
mf_add_test(check_planted USES worker kernels common SOURCES planted.c TIMEOUT 300)
