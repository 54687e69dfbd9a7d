// Q6_K: four low bits and two high bits. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "fill.h"
#include "format_q6_k.h"

void kbench::KBENCH_ISA::fill_q6_k(MatmulTable& table) {
  fill_quantised<Q6_K, Format::Q6_K>(table);
}
#endif
