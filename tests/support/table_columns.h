/* Column names of shape tables and tuned tables, in order. */
#pragma once

#define SHAPE_COLUMNS                                                                           \
    "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1," \
    "doweight_stage1"
#define KEY_COLUMNS "gfx,cu_num," SHAPE_COLUMNS
#define TUNED_COLUMNS                                                                                        \
    KEY_COLUMNS ",block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,xbf16,flat,tflops," \
                "bw"
/* Columns of moefarm, which follow the columns of AITER. The optional column "form" is the last column. */
#define OWN_COLUMNS ",pipeline,layout,model,revision,compiler,routing,seed,n,mad,provenance"
