// Q5_0, Q5_1, Q5_K: nibbles and a line of top bits. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "fill.h"
#include "format_five_bits.h"

void kbench::KBENCH_ISA::fill_five_bits(MatmulTable& table) {
  fill_quantised<Q5_0, Format::Q5_0>(table);
  fill_quantised<Q5_1, Format::Q5_1>(table);
  fill_quantised<Q5_K, Format::Q5_K>(table);
}
#endif
