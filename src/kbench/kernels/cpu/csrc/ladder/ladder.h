// The optimisation ladder: one piece of work, a matrix times a few vectors, written a dozen times, each time with one
// change that should make it faster. Kept to be read and measured, not to be used: models run on the kernels beside
// this folder, which share nothing with it but the thread pool.
//
// Read the files by their numbers. `kbench bench matmul-ladder` measures each step against the one before.
//
//   y[t][row] = sum over i of w[row][i] * x[t][i]        n rows of k weights; 1 token in decode, many in prefill
//
//   w   row 0: w00 w01 w02 ... | row 1: w10 w11 ...      as a GGUF file stores them: a row's weights are neighbours
//
// Like every header that files of an instruction set include, it holds no code.
#pragma once
#include <cstdint>

namespace kbench {

class ThreadPool;

namespace ladder {

// 32 weights in 34 bytes, GGUF's type Q8_0: weight i is scale * q[i].
constexpr int64_t kBlock = 32;
struct BlockQ8_0 {
  uint16_t scale;  // float16
  int8_t q[kBlock];
};
static_assert(sizeof(BlockQ8_0) == 34, "GGUF Q8_0");

// One multiplication.
struct Linear {
  const void* w;   // floats, BlockQ8_0, or from step 11 on what `align` wrote
  const float* x;  // [tokens][k]
  float* y;        // [tokens][n]
  int64_t n, k, tokens;
  float* scratch;  // [n][k], for the step that wants it; else null
};

// Activations in int8, from step 9 on: x[t][i] is about scale[t][i / 32] * q[t][i].
struct Int8Rows {
  const int8_t* q;     // [tokens][k]
  const float* scale;  // [tokens][k / 32]
};

// Rows [begin, end) of a multiplication with int8 activations: what the steps that are written for one instruction set
// provide. Who computes which rows is decided outside (10_simd.cpp).
using RowsFn = void (*)(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end);
void rows_avx2(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end);
void rows_aligned(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end);
void rows_prefetched(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end);
void rows_vnni(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end);

}  // namespace ladder
}  // namespace kbench
