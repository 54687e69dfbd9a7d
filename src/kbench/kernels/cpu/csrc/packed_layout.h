// How the weights of one tile (16 rows) lie in memory, for pack.cpp, matrix.cpp and the kernels of every ISA.
//
// A "line" is 64 bytes: 16 dwords, one for each row, so AVX-512 loads it as one register and AVX2 as two (rows 0-7 and
// rows 8-15). A dword holds weights that are multiplied with the same dword of four int8 activations, which the
// kernels broadcast.
//
//   nibble line l of a block of 32 (Q4_0, Q4_1, Q4_K), l = 0..3; byte j of row r's dword:
//       bits 0-3  weight  4*l + j         bits 4-7  weight 16 + 4*l + j          (GGUF's own pairing, kept)
//   byte line l of a block of 32 (Q8_0), l = 0..7:
//       bits 0-7  weight  4*l + j
//   six-bit group of 16 weights (Q6_K), three lines A B C; byte j of row r's dword:
//       A: bits 0-3  low bits of weight j          bits 4-7  low bits of weight  8 + j
//       B: bits 0-3  low bits of weight 4 + j      bits 4-7  low bits of weight 12 + j
//       C: bits 0-1  high bits of weight j, 2-3 of weight 4 + j, 4-5 of weight 8 + j, 6-7 of weight 12 + j
//
// Scales of 16 rows stand side by side too: 16 float16 = 32 bytes, 16 int8 = 16 bytes. Where they leave the lines
// unaligned (32 bytes per block), they are a plane of their own behind all quants of the tile, padded to a line.
//
//   tile of Q4_0   k/32 x [ 4 nibble lines ]                                        | k/32  x [ d f16 x 16 ]
//   tile of Q4_1   k/32 x [ d f16 x 16 | m f16 x 16 | 4 nibble lines ]
//   tile of Q8_0   k/32 x [ 8 byte lines ]                                          | k/32  x [ d f16 x 16 ]
//   tile of Q4_K   k/256 x [ d f16 x 16 | dmin f16 x 16 | 8 x (sc u8 x 16, m u8 x 16) | 32 nibble lines ]
//   tile of Q6_K   k/256 x [ 16 x (sc i8 x 16) | 16 x (A B C) ]                     | k/256 x [ d f16 x 16 ]
//   tile of F32    k x [ f32 x 16 ]        tile of F16, BF16   k x [ 16 bits x 16 ]
//
// Bits per weight: Q4_0 4.5, Q4_1 5, Q8_0 8.5, Q4_K 4.625 (GGUF 4.5: sc and m are widened from six bits to eight, which
// saves a dozen instructions per block), Q6_K 6.5625.
#pragma once
#include <cstdint>

namespace kbench {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kHalvesBytes = 32;  // 16 float16, one for each row
constexpr int64_t kBlock = 32;        // weights that share one activation scale
constexpr int64_t kSuperBlock = 256;

constexpr int64_t kNibbleBlockBytes = 4 * kLineBytes;
constexpr int64_t kByteBlockBytes = 8 * kLineBytes;

constexpr int64_t kQ4_1BlockBytes = 2 * kHalvesBytes + kNibbleBlockBytes;

constexpr int64_t kQ4_KScales = 2 * kHalvesBytes;      // offset of sc and m in a super-block
constexpr int64_t kQ4_KScalesBytes = 32;               // sc and m of one block of 32
constexpr int64_t kQ4_KQuants = kQ4_KScales + 8 * kQ4_KScalesBytes;
constexpr int64_t kQ4_KBytes = kQ4_KQuants + 8 * kNibbleBlockBytes;

constexpr int64_t kQ6_KScalesBytes = 16;               // sc of one group of 16
constexpr int64_t kQ6_KQuants = 16 * kQ6_KScalesBytes;
constexpr int64_t kQ6_KGroupBytes = 3 * kLineBytes;
constexpr int64_t kQ6_KBytes = kQ6_KQuants + 16 * kQ6_KGroupBytes;

static_assert(kQ4_KBytes * 8 == 4.625 * 16 * 256, "37 lines");
static_assert(kQ6_KBytes % kLineBytes == 0, "52 lines");

}  // namespace kbench
