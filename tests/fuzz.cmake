# Fuzz targets of tests/fuzz/. Every build runs the saved inputs as tests; with MF_FUZZ the same programs go on
# from them (scripts/fuzz.sh).
mf_add_fuzz(fuzz_wire USES server common
    PARSES common/net/wire.c common/base/json.c common/moe/step.c server/farm/result.c)
mf_add_fuzz(fuzz_channel USES common SOURCES worker/runner/runner_wire.c
    PARSES worker/runner/runner_wire.c)
mf_add_fuzz(fuzz_shape USES common
    PARSES common/moe/shape.c common/moe/shape_form.c common/moe/routing.c common/moe/tensor_spec.c common/moe/layer.c common/moe/device_class.c)
mf_add_fuzz(fuzz_csv USES common
    PARSES common/table/csv.c common/table/table_read.c common/table/table_header.c common/table/table_column.c common/table/table_number.c)
mf_add_fuzz(fuzz_model USES common
    PARSES common/table/model.c common/table/model_config.c)
mf_add_fuzz(fuzz_body USES server common
    PARSES server/api/submission.c)
mf_add_fuzz(fuzz_http USES server common
    PARSES server/http/exchange.c server/api/routes.c server/api/cursor.c)
mf_add_fuzz(fuzz_manifest USES common SOURCES kernels/families/asm_manifest.c
    PARSES kernels/families/asm_manifest.c)
mf_add_fuzz(fuzz_name USES common SOURCES kernels/aiter/aiter_name.c
    PARSES kernels/aiter/aiter_name.c)
