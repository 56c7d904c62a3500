# made up for tests

OPUS_A8W4_STAGE1_INSTANCES = (
    OpusA8W4Stage1Instance(
        kid=1000,
        name="opus_moe1_afp8_wfp4_bf16_t32x512_gs_qgb9",
        block_m=32,
        block_n=512,
        gate_up_group_split=True,
    ),
    OpusA8W4Stage1Instance(
        kid=1001,
        name="opus_moe1_afp8_wfp4_bf16_t16x384_pair_kw5",
        block_m=16,
        block_n=384,
        k_wave=5,
    ),
)

OPUS_A8W4_DECODE_STAGE2_INSTANCES = (
    _atomic_stage2_instance(
        kid=KID,
        name="opus_moe2_afp8_wfp4_atomic_t32x64x256_sbm32_new",
        block_m=32,
        block_n=64,
        sort_block_m=32,
        max_tuner_token=1024,
    ),
    _route_stage2_instance(
        kid=KID,
        name="opus_moe2_afp8_wfp4_fp8_t64x256x256_sbm64_new",
        block_m=64,
        sort_block_m=64,
        min_tuner_token=128,
    ),
)
