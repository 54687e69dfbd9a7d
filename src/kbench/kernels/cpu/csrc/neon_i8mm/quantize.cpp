// Activations are quantised as neon_dotprod does it.
#include "../matmul/kernels.h"

void kbench::KBENCH_ISA::fill_own(MatmulTable&) {}
