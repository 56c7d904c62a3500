# Tests of worker/
mf_add_test(check_race USES worker)
