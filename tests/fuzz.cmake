# Fuzz targets of tests/fuzz/. Every build runs the saved inputs as tests; with MF_FUZZ the same programs go on
# from them (scripts/fuzz.sh).
mf_add_fuzz(fuzz_wire USES common)
mf_add_fuzz(fuzz_shape USES common)
mf_add_fuzz(fuzz_csv USES common)
mf_add_fuzz(fuzz_manifest USES kernels common)
