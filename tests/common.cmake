# Tests of common/
mf_add_test(check_shape USES common)
mf_add_test(check_stats USES common)
mf_add_test(check_wire USES common)
mf_add_test(check_buf USES common LINK -Wl,--wrap=realloc)      # its n-th call fails
mf_add_test(check_text USES common)
mf_add_test(check_artifact USES common)
mf_add_test(check_step USES common)
mf_add_test(check_json USES common)
mf_add_test(check_layer USES common)
mf_add_test(check_routing USES common)
mf_add_test(check_device_class USES common)
mf_add_test(check_log USES common)
mf_add_test(check_opts USES common)
