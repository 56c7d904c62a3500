# Tests of kernels/
mf_add_test(check_philox USES kernels)
mf_add_test(check_quant USES kernels)
mf_add_test(check_layout USES kernels)
mf_add_test(check_data USES kernels)
mf_add_test(check_reference USES kernels)
