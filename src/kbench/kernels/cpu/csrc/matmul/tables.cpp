// IQ4_NL, IQ4_XS, MXFP4: nibbles that index a table. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "fill.h"
#include "format_tables.h"

void kbench::KBENCH_ISA::fill_tables(MatmulTable& table) {
  fill_quantised<IQ4_NL, Format::IQ4_NL>(table);
  fill_quantised<IQ4_XS, Format::IQ4_XS>(table);
  fill_quantised<MXFP4, Format::MXFP4>(table);
}
#endif
