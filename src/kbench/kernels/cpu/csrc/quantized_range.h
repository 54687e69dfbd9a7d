// The range of activations that the int8 quantisation can hold; the same for every ISA, so that all of them write the
// same bits.
#pragma once
#include <cstdint>

namespace kbench {

// Magnitudes are compared as bits: for floats without sign the order is the same, and NaN is above infinity, so one
// maximum finds both. A block with NaN or infinity in it gets scale = sum = NaN and q = 0: every output that reads the
// block becomes NaN, which is what a float kernel would give, and no conversion of NaN to an integer is ever made.
constexpr uint32_t kInfinityBits = 0x7f800000u;
// 2^-119: below it 127 / absmax overflows. Such a block counts as zero (scale = sum = 0, q = 0).
constexpr uint32_t kSmallestBits = 0x04000000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

}  // namespace kbench
