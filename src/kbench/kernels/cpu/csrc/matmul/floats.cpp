// F32, F16, BF16. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS) && !defined(KBENCH_HAS_TILES)
#include "float_kernel.h"
#include "kernels.h"

void kbench::KBENCH_ISA::fill_floats(MatmulTable& table) {
  table.matmul[static_cast<int>(Format::F32)] = multiply_floats<Registers, F32<Registers>>;
  table.matmul[static_cast<int>(Format::F16)] = multiply_floats<Registers, F16<Registers>>;
  table.matmul[static_cast<int>(Format::BF16)] = multiply_floats<Registers, BF16<Registers>>;
}
#endif
