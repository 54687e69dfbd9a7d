// Quantised activations in memory, and which of their forms a matrix reads.
#pragma once
#include <cstdint>

#include "matmul_table.h"

namespace kbench {

// All forms of `rows` rows of k columns, laid out in `data`, and the bytes that they take.
Activation activation_in(uint8_t* data, int64_t rows, int64_t k, int planes);
int64_t activation_bytes(int64_t rows, int64_t k, int planes);
// The same activation from row `row` on.
Activation rows_from(const Activation& a, int64_t row);

// The kernel for `tokens` tokens of activations with `planes` planes, and whether it reads words.
struct KernelChoice {
  MatmulFn fn = nullptr;
  bool words = false;
};
KernelChoice choose_kernel(const MatmulTable& table, Format format, int64_t tokens, int planes,
                           const MatmulParameters& p);

}  // namespace kbench
