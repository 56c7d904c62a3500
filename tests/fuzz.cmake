# Fuzz targets of tests/fuzz/. Every build runs the saved inputs as tests; with MF_FUZZ the same programs go on
# from them (scripts/fuzz.sh).
mf_add_fuzz(fuzz_wire USES server common
    PARSES common/wire.c common/json.c common/step.c server/result.c)
mf_add_fuzz(fuzz_channel USES common SOURCES worker/runner_wire.c
    PARSES worker/runner_wire.c)
mf_add_fuzz(fuzz_shape USES common
    PARSES common/shape.c common/shape_form.c common/routing.c common/artifact.c common/layer.c common/device_class.c)
mf_add_fuzz(fuzz_csv USES common
    PARSES common/csv.c common/table_read.c common/table_header.c common/table_column.c common/table_number.c)
mf_add_fuzz(fuzz_model USES common
    PARSES common/model.c common/model_config.c)
mf_add_fuzz(fuzz_body USES server common
    PARSES server/submission.c)
mf_add_fuzz(fuzz_http USES server common
    PARSES server/exchange.c server/routes.c server/cursor.c)
mf_add_fuzz(fuzz_manifest USES common SOURCES kernels/asm_manifest.c
    PARSES kernels/asm_manifest.c)
mf_add_fuzz(fuzz_name USES common SOURCES kernels/aiter_name.c
    PARSES kernels/aiter_name.c)
