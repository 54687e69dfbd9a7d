#include "matmul_kernels.h"

namespace kbench {

// quantize stays AVX2's: a pass over a few KiB per token that is bound by memory, not by the width of registers.
void fill_matmul_table_avx512_vnni(MatmulTable& table) {
#if defined(__x86_64__)
  table.matmul[static_cast<int>(Format::F32)] = avx512_vnni::matmul_f32;
  table.matmul[static_cast<int>(Format::F16)] = avx512_vnni::matmul_f16;
  table.matmul[static_cast<int>(Format::BF16)] = avx512_vnni::matmul_bf16;
  table.matmul[static_cast<int>(Format::Q4_0)] = avx512_vnni::matmul_q4_0;
  table.matmul[static_cast<int>(Format::Q4_1)] = avx512_vnni::matmul_q4_1;
  table.matmul[static_cast<int>(Format::Q8_0)] = avx512_vnni::matmul_q8_0;
  table.matmul[static_cast<int>(Format::Q4_K)] = avx512_vnni::matmul_q4_k;
  table.matmul[static_cast<int>(Format::Q6_K)] = avx512_vnni::matmul_q6_k;
#else
  (void)table;  // nothing to offer: the table keeps the kernels of the next lower ISA
#endif
}

}  // namespace kbench
