// The matrix kernels of one ISA: a table of function pointers, filled in matmul/table.cpp, which is compiled once for
// each ISA. Only these headers, <immintrin.h> or <arm_neon.h>, and <cstdint> may be included by an ISA's files, and
// everything in them is static: an inline function compiled with AVX-512 flags and merged by the linker would crash
// older CPUs.
//
// Two kernels for each format:
//   matmul  few tokens. Weights are multiplied straight from the packed lines, in the order of memory.
//   panel_* many tokens. A tile's weights are unpacked once per block of columns, into a panel that stays in the first-
//           level cache, and all tokens of a chunk are multiplied with it.
#pragma once
#include <cstdint>

#include "matrix.h"

namespace kbench {

// Activations of `tokens` rows, quantised once per input and read by every quantised matrix that takes it. All forms
// round to nearest in blocks of 32. Those whose pointers are null are not made.
//
// Planes, for `matmul` and `panel_bytes`: one or two int8 rows per token. The second plane holds what
// rounding took from the first: together they carry 15 bits. A token's planes are neighbouring rows; a matrix multiplies
// them as if they were tokens and adds the results.
//   q      [tokens][planes][k]        int8
//   scale  [tokens][planes][k/32]     float: x ~ q * scale, summed over the planes
//   sum    [tokens][planes][k/32][2]  float: scale * (sum of all q of the block, sum of its first 16), for
//                                     formats with an offset or a minimum per 32 or per 16 weights: each needs one
//                                     multiply-add per sum
// Words, for `panel_words`: int16 of 14 bits (kWordMost), so that products with weights of 13 bits add up in int32.
//   words       [tokens][k]           int16; of each four the order is 0 2 1 3, see matmul/panel_kernel.h
//   word_scale  [tokens][k/32]        word_sum  [tokens][k/32][2]    as above
struct Activation {
  const float* x = nullptr;  // the float rows themselves, for float formats
  int64_t ldx = 0;           // floats from one row of x to the next
  int64_t k = 0;
  int8_t* q = nullptr;
  float* scale = nullptr;
  float* sum = nullptr;
  int16_t* words = nullptr;
  float* word_scale = nullptr;
  float* word_sum = nullptr;
  int planes = 1;
  int64_t ldq = 0;  // elements from one row of q or words to the next; 0: k. Only quantising a slice of a row needs it.
};

// More than a call may have: a switch point of so many tokens is "never".
constexpr int64_t kManyTokens = (1 << 20) + 1;

// What a kernel may be asked to do differently; block_parameters.cpp says why the defaults are what they are.
struct MatmulParameters {
  int planes = 2;                     // of activations; kernels of float formats that round activations look here
  int64_t prefetch_bytes = 2048;      // how far ahead of the weights in use the next ones are asked for
  int64_t k_block = 512;              // columns of a panel
  int64_t token_tile = 0;             // most tokens at a time; 0: as many as the kernel has
  int64_t chunk_bytes = 512 * 1024;   // of activations that are multiplied with every tile before the next ones
  int64_t panel_tokens = 0;           // from how many tokens on `panel` is used; 0: MatmulTable::panel_tokens
};

// Writes the forms of rows [token_begin, token_end) of `a` whose pointers are set. k is a multiple of 32.
using QuantizeFn = void (*)(const Activation& a, int64_t token_begin, int64_t token_end);

// y[t * ldy + row] = sum_k w[row, k] * x[t, k] (+ bias[row]) for the rows of tiles [tile_begin, tile_end) and
// tokens [0, tokens). Never writes past row n - 1. bias may be null.
using MatmulFn = void (*)(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin,
                          int64_t tile_end, const float* bias, float* y, int64_t ldy, const MatmulParameters& p);

struct MatmulTable {
  QuantizeFn quantize = nullptr;
  MatmulFn matmul[kFormatCount] = {};       // reads planes; floats, where the format is one
  MatmulFn panel_bytes[kFormatCount] = {};  // reads planes; null: this ISA has none
  MatmulFn panel_words[kFormatCount] = {};  // reads words; null: this ISA has none
  // From how many tokens on panels are faster, with one and with two planes.
  int64_t panel_tokens[kFormatCount][2] = {};
};

// A table arrives filled with the kernels of the ISA that this one builds on (isa.h); what is not filled stays so.
void fill_matmul_table_scalar(MatmulTable& table);
void fill_matmul_table_avx2(MatmulTable& table);
void fill_matmul_table_avx_vnni(MatmulTable& table);
void fill_matmul_table_avx512(MatmulTable& table);
void fill_matmul_table_avx512_vnni(MatmulTable& table);
void fill_matmul_table_avx512_bf16(MatmulTable& table);
void fill_matmul_table_amx(MatmulTable& table);
void fill_matmul_table_neon_dotprod(MatmulTable& table);
void fill_matmul_table_neon_i8mm(MatmulTable& table);

}  // namespace kbench
