// Arm NEON with the int8 matrix instructions (Armv8.6 "i8mm"): panels multiply two rows with two tokens at once.
#pragma once
#if defined(__aarch64__)
#define KBENCH_HAS_REGISTERS
#include "../neon_registers.h"

namespace kbench {
namespace {

struct Registers : NeonRegisters {
  static constexpr bool kPairsRows = true;
  // 6 tokens are 3 pairs: 24 integer sums of 2 x 2, of 32 registers.
  static constexpr int kPanelRows = 6;

  static Int pair_dots(Int sum, Int w, Int x) {
    return vmmlaq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
  }
  static Int load_half_twice(const uint8_t* p) {
    int64_t half;
    std::memcpy(&half, p, sizeof half);
    return vreinterpretq_s32_s64(vdupq_n_s64(half));
  }
  static Int zip_low(Int a, Int b) { return vzip1q_s32(a, b); }
  static Int zip_high(Int a, Int b) { return vzip2q_s32(a, b); }
  static Int unzip_even(Int a, Int b) { return vuzp1q_s32(a, b); }
  static Int unzip_odd(Int a, Int b) { return vuzp2q_s32(a, b); }
};

}  // namespace
}  // namespace kbench
#endif
