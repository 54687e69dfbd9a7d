// How the weights of one tile (16 rows) lie in memory, for pack.cpp, matrix.cpp and the kernels of every ISA.
//
// A "line" is 64 bytes: 16 dwords, one for each row, so AVX-512 loads it as one register and AVX2 as two (rows 0-7 and
// rows 8-15). A dword holds weights that are multiplied with the same dword of four int8 activations, which the
// kernels broadcast.
//
//   nibble line l of a block of 32 (Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, IQ4_NL, IQ4_XS, MXFP4), l = 0..3; byte j of row
//   r's dword:
//       bits 0-3  weight  4*l + j         bits 4-7  weight 16 + 4*l + j          (GGUF's own pairing, kept)
//   bit line of a block of 32 (Q5_0, Q5_1, Q5_K, Q3_K); byte j of row r's dword:
//       bit q     top bit of weight 4*q + j, q = 0..7
//   crumb line of a group of 16 weights (Q2_K, Q3_K); byte j of row r's dword:
//       bits 2*c, 2*c + 1   the two low bits of weight 4*c + j, c = 0..3
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
//   tile of Q4_0    k/32 x [ 4 nibble lines ]                                       | k/32  x [ d f16 x 16 ]
//   tile of Q4_1    k/32 x [ d f16 x 16 | m f16 x 16 | 4 nibble lines ]
//   tile of Q5_0    k/32 x [ 4 nibble lines | bit line ]                            | k/32  x [ d f16 x 16 ]
//   tile of Q5_1    k/32 x [ d f16 x 16 | m f16 x 16 | 4 nibble lines | bit line ]
//   tile of Q8_0    k/32 x [ 8 byte lines ]                                         | k/32  x [ d f16 x 16 ]
//   tile of Q2_K    k/256 x [ d f16 x 16 | dmin f16 x 16 | 16 x (sc, m u4 x 16: sc in the low nibble, as in GGUF)
//                           | 16 crumb lines ]
//   tile of Q3_K    k/256 x [ 16 x (sc i8 x 16) | 8 x (2 crumb lines | bit line) ]  | k/256 x [ d f16 x 16 ]
//   tile of Q4_K    k/256 x [ d f16 x 16 | dmin f16 x 16 | 8 x (sc u8 x 16, m u8 x 16) | 32 nibble lines ]
//   tile of Q5_K    k/256 x [ d f16 x 16 | dmin f16 x 16 | 8 x (sc u8 x 16, m u8 x 16)
//                           | 8 x (4 nibble lines | bit line) ]
//   tile of Q6_K    k/256 x [ 16 x (sc i8 x 16) | 16 x (A B C) ]                    | k/256 x [ d f16 x 16 ]
//   tile of IQ4_NL  k/32 x [ 4 nibble lines ]                                       | k/32  x [ d f16 x 16 ]
//   tile of IQ4_XS  k/256 x [ 8 x (sc i8 x 16) | 32 nibble lines ]                  | k/256 x [ d f16 x 16 ]
//   tile of MXFP4   k/32 x [ 4 nibble lines ]                                       | k/32  x [ e u8 x 16 ]
//   tile of F32     k x [ f32 x 16 ]       tile of F16, BF16   k x [ 16 bits x 16 ]
//
// What the numbers mean, q being a weight's bits:
//   Q4_0 d * (q - 8)          Q5_0 d * (q - 16)          Q4_1, Q5_1 d * q + m              Q8_0 d * q, q signed
//   Q2_K, Q4_K, Q5_K (d * sc) * q - dmin * m             Q3_K (d * sc) * (q - 4)           Q6_K (d * sc) * (q - 32)
//   IQ4_NL d * kIq4Values[q]  IQ4_XS (d * sc) * kIq4Values[q]      MXFP4 2^(e - 128) * kMxfp4Values[q]
// sc of Q3_K and IQ4_XS has its 32 subtracted already. The 2^-128 of MXFP4 halves its values, which are stored doubled.
//
// Bits per weight: Q4_0, IQ4_NL 4.5, Q4_1 5, Q5_0 5.5, Q5_1 6, Q8_0 8.5, MXFP4 4.25, Q2_K 2.625 (all as in GGUF), Q4_K
// 4.625 and Q5_K 5.625 (GGUF 4.5, 5.5: sc and m are widened from six bits to eight, which saves a dozen instructions
// per block), Q3_K 3.5625 (GGUF 3.4375: six-bit sc widened), IQ4_XS 4.3125 (GGUF 4.25: the same), Q6_K 6.5625.
#pragma once
#include <cstdint>

namespace kbench {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kHalvesBytes = 32;  // 16 float16, one for each row
constexpr int64_t kBlock = 32;        // weights that share one activation scale
constexpr int64_t kSuperBlock = 256;

// static: unoptimised it is called, and a copy compiled for one ISA must not serve the others.
static constexpr int64_t whole_lines(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

constexpr int64_t kNibbleBlockBytes = 4 * kLineBytes;
constexpr int64_t kByteBlockBytes = 8 * kLineBytes;

constexpr int64_t kFiveBitBlockBytes = kNibbleBlockBytes + kLineBytes;  // the bit line follows the nibble lines

constexpr int64_t kQ4_1BlockBytes = 2 * kHalvesBytes + kNibbleBlockBytes;
constexpr int64_t kQ5_1BlockBytes = 2 * kHalvesBytes + kFiveBitBlockBytes;
constexpr int64_t kExponentsBytes = 16;                // MXFP4: 16 exponent bytes, one for each row

constexpr int64_t kQ2_KScales = 2 * kHalvesBytes;      // offset of sc and m in a super-block
constexpr int64_t kQ2_KScalesBytes = 16;               // sc and m of one group of 16
constexpr int64_t kQ2_KQuants = kQ2_KScales + 16 * kQ2_KScalesBytes;
constexpr int64_t kQ2_KGroupBytes = kLineBytes;
constexpr int64_t kQ2_KBytes = kQ2_KQuants + 16 * kQ2_KGroupBytes;

constexpr int64_t kQ3_KScalesBytes = 16;               // sc of one group of 16
constexpr int64_t kQ3_KQuants = 16 * kQ3_KScalesBytes;
constexpr int64_t kQ3_KBlockBytes = 3 * kLineBytes;
constexpr int64_t kQ3_KBytes = kQ3_KQuants + 8 * kQ3_KBlockBytes;

constexpr int64_t kQ4_KScales = 2 * kHalvesBytes;      // offset of sc and m in a super-block
constexpr int64_t kQ4_KScalesBytes = 32;               // sc and m of one block of 32
constexpr int64_t kQ4_KQuants = kQ4_KScales + 8 * kQ4_KScalesBytes;
constexpr int64_t kQ4_KBytes = kQ4_KQuants + 8 * kNibbleBlockBytes;

constexpr int64_t kQ5_KBytes = kQ4_KQuants + 8 * kFiveBitBlockBytes;  // begins as Q4_K does

constexpr int64_t kQ6_KScalesBytes = 16;               // sc of one group of 16
constexpr int64_t kQ6_KQuants = 16 * kQ6_KScalesBytes;
constexpr int64_t kQ6_KGroupBytes = 3 * kLineBytes;
constexpr int64_t kQ6_KBytes = kQ6_KQuants + 16 * kQ6_KGroupBytes;

constexpr int64_t kIQ4_XSScalesBytes = 16;             // sc of one block of 32
constexpr int64_t kIQ4_XSQuants = 8 * kIQ4_XSScalesBytes;
constexpr int64_t kIQ4_XSBytes = kIQ4_XSQuants + 8 * kNibbleBlockBytes;

// The 16 values of IQ4_NL and IQ4_XS, and those of MXFP4 (e2m1, doubled to be whole). In 16-byte lines: a vector
// shuffle looks them up.
alignas(16) constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static_assert(kQ2_KBytes * 8 == 2.625 * 16 * 256 && kQ2_KBytes % kLineBytes == 0, "21 lines");
static_assert(kQ3_KBytes % kLineBytes == 0, "28 lines");
static_assert(kQ4_KBytes * 8 == 4.625 * 16 * 256, "37 lines");
static_assert(kQ5_KBytes * 8 == 5.625 * 16 * 256 && kQ5_KBytes % kLineBytes == 0, "45 lines");
static_assert(kQ6_KBytes % kLineBytes == 0, "52 lines");
static_assert(kIQ4_XSBytes % kLineBytes == 0, "34 lines");

}  // namespace kbench
