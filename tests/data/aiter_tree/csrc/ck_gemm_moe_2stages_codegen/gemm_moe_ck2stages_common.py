# made up for tests
a8w8_gemm1_blockscale_kernels_list= {
     0: kernelInstanceGEMM1(       256,       32,        128,       128,     1,       4,        7,),
    # 1: kernelInstanceGEMM1(       256,       64,        128,       128,     1,       4,        7,),
}
a8w8_gemm2_blockscale_kernels_list = {
     0: kernelInstanceGEMM2(       256,       32,        128,       128,     1,       4,        7,),
}
