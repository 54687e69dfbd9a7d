// Q4_0, Q4_1, Q4_K: unsigned nibbles. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "fill.h"
#include "format_nibbles.h"

void kbench::KBENCH_ISA::fill_nibbles(MatmulTable& table) {
  fill_quantised<Q4_0, Format::Q4_0>(table);
  fill_quantised<Q4_1, Format::Q4_1>(table);
  fill_quantised<Q4_K, Format::Q4_K>(table);
}
#endif
