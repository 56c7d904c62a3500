# Tests of server/
mf_add_test(check_path USES server)
