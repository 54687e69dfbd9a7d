// The matrix kernels of this folder, one file for each way of storing quants.
#pragma once
#include "../matmul_table.h"

namespace kbench::avx512_vnni {

#define KBENCH_MATMUL(name)                                                                                    \
  void name(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end, \
            const float* bias, float* y, int64_t ldy)
KBENCH_MATMUL(matmul_f32);
KBENCH_MATMUL(matmul_f16);
KBENCH_MATMUL(matmul_bf16);
KBENCH_MATMUL(matmul_q4_0);
KBENCH_MATMUL(matmul_q4_1);
KBENCH_MATMUL(matmul_q8_0);
KBENCH_MATMUL(matmul_q4_k);
KBENCH_MATMUL(matmul_q6_k);

}  // namespace kbench::avx512_vnni
