// Q8_0: signed bytes. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "fill.h"
#include "format_q8_0.h"

void kbench::KBENCH_ISA::fill_q8_0(MatmulTable& table) {
  fill_quantised<Q8_0, Format::Q8_0>(table);
}
#endif
