// The operations without a weight matrix, of one ISA: a table of function pointers, filled in <isa>/ops.cpp and
// <isa>/ops_attention.cpp. The rules of matmul_table.h hold: an ISA's files include only these headers, <immintrin.h>
// and <cstdint> (scalar files may use <cmath>), and everything in them is static.
#pragma once
#include <cstdint>

namespace kbench {

// Positions that attention takes at a time: scores of 48 rows and the float panels of K and V for d = 64 (6 + 8 + 8
// KiB) stay in the first-level cache, and the work is cut between threads at multiples of it.
constexpr int64_t kAttentionUnit = 32;
// Query rows (heads of one group x tokens) that share a stretch of the cache. A multiple of the 6-row register tile;
// at 48 the transposition of K costs 8 % of the arithmetic that it serves.
constexpr int64_t kAttentionRows = 48;

// Query rows against positions [begin, end) of one KV head, as in flash attention: running maximum, running sum,
// unnormalised output. Row r sees positions [0, visible[r]).
struct AttentionBlock {
  const float* q = nullptr;  // [rows][d_k], multiplied by the scale already
  int64_t rows = 0;          // at most kAttentionRows
  int64_t d_k = 0;
  int64_t d_v = 0;
  const void* k = nullptr;  // position p at k + p * k_stride elements; float, or IEEE half where `half`
  const void* v = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  bool half = false;
  int64_t begin = 0;
  int64_t end = 0;
  const int64_t* visible = nullptr;
  float* max = nullptr;      // out [rows]; -inf where nothing is visible
  float* sum = nullptr;      // out [rows]: sum of exp(score - max)
  float* out = nullptr;      // out [rows][d_v]: sum of exp(score - max) * v
  float* scratch = nullptr;  // attention_scratch_floats(d_k, d_v)
};

// Scores [kAttentionRows][unit], K transposed [d_k][unit], V [unit][d_v], and room to align each to 64 bytes.
constexpr int64_t attention_scratch_floats(int64_t d_k, int64_t d_v) {
  return (kAttentionRows + d_k + d_v) * kAttentionUnit + 48;
}

struct OpTable {
  // y = x * weight / sqrt(mean(x^2) + eps) of one row of d. y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t d, float eps, float* y) = nullptr;
  // y = silu(gate) * up
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y) = nullptr;
  // y = a + b
  void (*add)(const float* a, const float* b, int64_t n, float* y) = nullptr;
  // y += weight * x
  void (*add_scaled)(const float* x, float weight, int64_t n, float* y) = nullptr;
  // Rotates one vector of d by d/2 angles. "norm" pairs (x[2i], x[2i+1]), "neox" pairs (x[i], x[i + d/2]). y may be x.
  void (*rope_norm)(const float* x, const float* cosine, const float* sine, int64_t d, float* y) = nullptr;
  void (*rope_neox)(const float* x, const float* cosine, const float* sine, int64_t d, float* y) = nullptr;
  // y = x * scale
  void (*scale)(const float* x, float scale, int64_t n, float* y) = nullptr;
  // IEEE half, round to nearest even.
  void (*to_half)(const float* x, int64_t n, uint16_t* y) = nullptr;
  void (*attention)(const AttentionBlock& block) = nullptr;
};

void fill_op_table_scalar(OpTable& table);
void fill_op_table_scalar_attention(OpTable& table);
void fill_op_table_avx2(OpTable& table);
void fill_op_table_avx2_attention(OpTable& table);
void fill_op_table_avx512_attention(OpTable& table);

}  // namespace kbench
