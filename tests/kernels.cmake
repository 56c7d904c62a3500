# Tests of kernels/
