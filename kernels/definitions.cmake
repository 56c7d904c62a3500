set(MF_DEFINITION_SOURCES
    calibrate.c
    codec.c
    fusion.c
    shuffle.c
    quant_mx.c
    data.c
    fmoe_pipeline.c
    layout.c
    philox.c
    quant.c
    reference.c
    reference_double.c
    reference_tensor_spec.c
    router.c
    routing_data.c
    tensors.c)
# The definitions are the same bits everywhere: no contraction, no fast arithmetic. -O3 for its vectoriser.
set_source_files_properties(
    codec.c quant_mx.c data.c layout.c philox.c quant.c reference.c reference_double.c reference_tensor_spec.c router.c routing_data.c tensors.c
    PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off;-fno-fast-math")
