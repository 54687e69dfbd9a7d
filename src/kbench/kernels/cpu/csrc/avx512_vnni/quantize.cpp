// Activations are quantised as AVX2 does it: a pass over a few KiB per token that is bound by memory, not by the width
// of registers.
#include "../matmul/kernels.h"

void kbench::KBENCH_ISA::fill_own(MatmulTable&) {}
