#include "support/kernels/cuda_facts.h"

const struct cuda_fact cuda_toolkit_facts[] = {{"", 0}};
const size_t n_cuda_toolkit_facts;
