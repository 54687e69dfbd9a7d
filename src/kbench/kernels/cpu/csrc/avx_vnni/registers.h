// AVX2 with VNNI, of CPUs with 256-bit registers such as Alder Lake, as the kernels in matmul/ see an ISA.
// avx2/registers.h says what each name is.
#pragma once
#if defined(__x86_64__)
#define KBENCH_HAS_REGISTERS
#include "../avx2/eight_rows.h"
#include "intrinsics.h"

namespace kbench {
namespace {

struct Registers : EightRows {
  static constexpr int kLineRows = 4;
  // 12 sums, two registers of weights and one of activations are 15 of 16: products need none of their own.
  static constexpr int kPanelRows = 6;
  static constexpr int kPanelTiles = 1;
  static constexpr int kFloatRows = 6;
  static constexpr int kLineRegisters = 2;
  static constexpr bool kShiftsSigned = true;
  static constexpr bool kScalesDots = false;
  static constexpr int kMostOfBytePanel = 255;  // products add up in int32
  static constexpr bool kHasWords = true;
  static constexpr bool kHasLines = true;
  static constexpr bool kPairsRows = false;
  // Not measured: no such machine was at hand.
  static constexpr int64_t panel_tokens(int, int planes) { return planes == 1 ? 16 : 8; }

  static void settle(Int&) {}

  template <int most, bool is_signed>
  struct Dots {
    static constexpr int kFit = 8;
    static Int first(Int w, Int x) { return next(_mm256_setzero_si256(), w, x); }
    static Int next(Int sum, Int w, Int x) {
      if constexpr (is_signed) w = _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));  // plus 128
      return _mm256_dpbusd_avx_epi32(sum, w, x);
    }
    static Int widen(Int sum) { return sum; }
  };

  static Int word_dots(Int sum, Int w, Int x) { return _mm256_dpwssd_avx_epi32(sum, w, x); }
};

}  // namespace
}  // namespace kbench
#endif
