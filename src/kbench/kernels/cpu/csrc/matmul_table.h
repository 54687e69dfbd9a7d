// The matrix kernels of one ISA: a table of function pointers, filled in <isa>/matmul_table.cpp.
// Only these headers, <immintrin.h> and <cstdint> may be included by an ISA's files, and everything in them is
// static: an inline function compiled with AVX-512 flags and merged by the linker would crash older CPUs.
#pragma once
#include <cstdint>

#include "matrix.h"

namespace kbench {

// Activations of `tokens` rows, quantised once per input and read by every quantised matrix that takes it, in one or
// two planes of int8. The second plane holds what rounding took from the first: together they carry 15 bits. A token's
// planes are neighbouring rows; a matrix multiplies them as if they were tokens and adds the results.
//   q      [tokens][planes][k]        int8, round to nearest, blocks of 32
//   scale  [tokens][planes][k/32]     float: x ~ q * scale, summed over the planes
//   sum    [tokens][planes][k/32][2]  float: scale * (sum of all q of the block, sum of its first 16), for
//                                     formats with an offset or a minimum per 32 or per 16 weights: each needs one
//                                     multiply-add per sum
struct Activation {
  const float* x = nullptr;  // the float rows themselves, for float formats
  int64_t ldx = 0;           // floats from one row of x to the next
  int64_t k = 0;
  int8_t* q = nullptr;
  float* scale = nullptr;
  float* sum = nullptr;
  int planes = 1;
  int64_t ldq = 0;  // elements from one row of q to the next; 0: k. Only quantising a slice of a row needs it.
};

// Writes the quantised form of rows [token_begin, token_end) of `a`. k is a multiple of 32.
using QuantizeFn = void (*)(const Activation& a, int64_t token_begin, int64_t token_end);

// y[t * ldy + row] = sum_k w[row, k] * x[t, k] (+ bias[row]) for the rows of tiles [tile_begin, tile_end) and
// tokens [0, tokens). Never writes past row n - 1. bias may be null.
using MatmulFn = void (*)(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin,
                          int64_t tile_end, const float* bias, float* y, int64_t ldy);

struct MatmulTable {
  QuantizeFn quantize = nullptr;
  MatmulFn matmul[kFormatCount] = {};
};

// Missing entries (nullptr) are taken from the next lower ISA by resolve_matmul_table().
void fill_matmul_table_scalar(MatmulTable& table);
void fill_matmul_table_avx2(MatmulTable& table);
void fill_matmul_table_avx512_vnni(MatmulTable& table);

}  // namespace kbench
