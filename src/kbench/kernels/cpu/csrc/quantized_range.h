// The range of activations that the int8 quantisation can hold; the same for every ISA, so that all of them write the
// same bits.
#pragma once
#include <cstdint>

namespace kbench {

// Magnitudes are compared as bits: for floats without sign the order is the same, and NaN is above infinity, so one
// maximum finds both. A block with NaN or infinity in it gets scale = sum = NaN and q = 0: every output that reads the
// block becomes NaN, which is what a float kernel would give, and no conversion of NaN to an integer is ever made.
constexpr uint32_t kInfinityBits = 0x7f800000u;
// 2^-113: below it 8191 / absmax overflows. Such a block counts as zero (scale = sum = 0, q = 0).
constexpr uint32_t kSmallestBits = 0x07000000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

// The largest value of a byte of a plane, and of a word. 13 bits and a sign: 32 products with weights of at most
// 128 * 32 (Q6_K's integer scales times its quants) stay below 2^30.
constexpr float kByteMost = 127.0f;
constexpr float kWordMost = 8191.0f;

}  // namespace kbench
