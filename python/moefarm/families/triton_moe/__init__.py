"""The fused-MoE Triton kernels of vLLM (https://github.com/vllm-project/vllm) and SGLang
(https://github.com/sgl-project/sglang) as families of the farm. A candidate computes the whole layer with one
explicit configuration of block sizes, warps and stages. The kernels are those of the installed framework.

    --family-py moefarm.families.triton_moe.vllm_family
    --family-py moefarm.families.triton_moe.sglang_family

config.py, layer.py, space.py, prune.py, spread.py, packaged.py and offers.py need the standard library only.

MOEFARM_TRITON_CONFIGS=N limits the configurations of a shape to N. Half of them are taken from the files that
the framework packages for similar layers, the others are spread over the search space. Default: all
configurations that can run, and at most 4,096."""
