// The table of one ISA. See kernels.h.
#include KBENCH_REGISTERS

#include "kernels.h"

#define KBENCH_CONCATENATE(a, b) a##b
#define KBENCH_FILL_OF(isa) KBENCH_CONCATENATE(fill_matmul_table_, isa)

void kbench::KBENCH_FILL_OF(KBENCH_ISA)(MatmulTable& table) {
#if defined(KBENCH_HAS_REGISTERS)
  KBENCH_ISA::fill_own(table);
#if !defined(KBENCH_HAS_TILES)  // the tile unit multiplies no float32
  KBENCH_ISA::fill_floats(table);
#endif
  KBENCH_ISA::fill_nibbles(table);
  KBENCH_ISA::fill_tables(table);
  KBENCH_ISA::fill_five_bits(table);
  KBENCH_ISA::fill_crumbs(table);
  KBENCH_ISA::fill_q6_k(table);
  KBENCH_ISA::fill_q8_0(table);
#else
  (void)table;  // not this machine's architecture: the table stays as it is
#endif
}
