#include "matmul_kernels.h"

namespace kbench {

void fill_matmul_table_avx2(MatmulTable& table) {
#if defined(__x86_64__)
  table.quantize = avx2::quantize;
  table.matmul[static_cast<int>(Format::F32)] = avx2::matmul_f32;
  table.matmul[static_cast<int>(Format::F16)] = avx2::matmul_f16;
  table.matmul[static_cast<int>(Format::BF16)] = avx2::matmul_bf16;
  table.matmul[static_cast<int>(Format::Q4_0)] = avx2::matmul_q4_0;
  table.matmul[static_cast<int>(Format::Q4_1)] = avx2::matmul_q4_1;
  table.matmul[static_cast<int>(Format::Q8_0)] = avx2::matmul_q8_0;
  table.matmul[static_cast<int>(Format::Q4_K)] = avx2::matmul_q4_k;
  table.matmul[static_cast<int>(Format::Q6_K)] = avx2::matmul_q6_k;
#else
  (void)table;  // nothing to offer: the table keeps the scalar kernels
#endif
}

}  // namespace kbench
