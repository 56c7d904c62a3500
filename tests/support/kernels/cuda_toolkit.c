/* The CUDA driver API as the toolkit declares it. Does not compile if a function in cuda_functions.h has
 * other types than in the toolkit. */
#include <cuda.h>

/* The toolkit declares these versions of the functions only as macros for newer ones. */
#undef cuEventElapsedTime
#undef cuStreamUpdateCaptureDependencies

#include "kernels/gpu/host/cuda_functions.h"
#include "support/kernels/cuda_facts.h"

/* clang-format off */
const struct cuda_fact cuda_toolkit_facts[] = {CUDA_FACTS(CUDA_FACT)};
/* clang-format on */
const size_t n_cuda_toolkit_facts = sizeof(cuda_toolkit_facts) / sizeof(cuda_toolkit_facts[0]);
