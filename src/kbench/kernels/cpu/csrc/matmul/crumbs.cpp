// Q2_K, Q3_K: crumbs of two bits. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "fill.h"
#include "format_crumbs.h"

void kbench::KBENCH_ISA::fill_crumbs(MatmulTable& table) {
  fill_quantised<Q2_K, Format::Q2_K>(table);
  fill_quantised<Q3_K, Format::Q3_K>(table);
}
#endif
