// The operations without a weight matrix, of one ISA: a table of function pointers, filled in <isa>/ops.cpp,
// <isa>/ops_attention.cpp and <isa>/ops_cache.cpp. The rules of matmul_table.h hold: an ISA's files include only these headers, <immintrin.h>
// and <cstdint> (scalar files may use <cmath>), and everything in them is static.
#pragma once
#include <cstdint>

#include "attention_block.h"

namespace kbench {

struct OpTable {
  // y = x * weight / sqrt(mean(x^2) + eps) of one row of d. y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t d, float eps, float* y) = nullptr;
  // y = silu(gate) * up
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y) = nullptr;
  // y = g * sigmoid(alpha * g) * (u + 1), where g is gate, at most limit, and u is up, within +-limit. NaN stays NaN.
  void (*clamped_swiglu)(const float* gate, const float* up, int64_t n, float alpha, float limit, float* y) = nullptr;
  // y = a + b
  void (*add)(const float* a, const float* b, int64_t n, float* y) = nullptr;
  // y += weight * x
  void (*add_scaled)(const float* x, float weight, int64_t n, float* y) = nullptr;
  // Rotates one vector of d by d/2 angles. "norm" pairs (x[2i], x[2i+1]), "neox" pairs (x[i], x[i + d/2]). y may be x.
  void (*rope_norm)(const float* x, const float* cosine, const float* sine, int64_t d, float* y) = nullptr;
  void (*rope_neox)(const float* x, const float* cosine, const float* sine, int64_t d, float* y) = nullptr;
  // y = x * scale
  void (*scale)(const float* x, float scale, int64_t n, float* y) = nullptr;
  // A row of n floats as each CacheType stores it. Floats round to nearest even; q8_0 as GGML defines it: scale = largest
  // magnitude / 127, element / scale to the nearest integer, halves away from zero.
  void (*to_cache[kCacheTypes])(const float* x, int64_t n, uint8_t* y) = {};
  // out[n] = elements [first, first + n) of a stored row; of q8_0 whole blocks.
  void (*from_cache[kCacheTypes])(const uint8_t* row, int64_t first, int64_t n, float* out) = {};
  void (*attention)(const AttentionBlock& block) = nullptr;
};

void fill_op_table_scalar(OpTable& table);
void fill_op_table_scalar_attention(OpTable& table);
void fill_op_table_scalar_cache(OpTable& table);
void fill_op_table_avx2(OpTable& table);
void fill_op_table_avx2_attention(OpTable& table);
void fill_op_table_avx512_attention(OpTable& table);
void fill_op_table_avx2_cache(OpTable& table);

}  // namespace kbench
