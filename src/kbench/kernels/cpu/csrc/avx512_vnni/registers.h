// AVX-512 with VNNI as the kernels in matmul/ see an ISA. avx2/registers.h says what each name is.
#pragma once
#if defined(__x86_64__)
#define KBENCH_HAS_REGISTERS
#include "../avx512/sixteen_rows.h"

namespace kbench {
namespace {

struct Registers : SixteenRows {
  static constexpr int kLineRows = 6;
  static constexpr int kLineRegisters = 1;
  static constexpr int kFloatRows = 12;
  static constexpr bool kShiftsSigned = true;
  static constexpr bool kScalesDots = false;
  static constexpr int kMostOfBytePanel = 255;  // products add up in int32
  static constexpr bool kHasWords = true;
  static constexpr bool kHasLines = true;
  static constexpr bool kPairsRows = false;  // see matmul/pair_panel.h
  // Not measured: no such machine was at hand.
  static constexpr int64_t panel_tokens(int, int planes) { return planes == 1 ? 16 : 8; }

  static void settle(Int&) {}

  // vpdpbusd adds four products of unsigned weights in int32: nothing saturates, nothing is widened.
  template <int most, bool is_signed>
  struct Dots {
    static constexpr int kFit = 8;
    static Int first(Int w, Int x) { return next(_mm512_setzero_si512(), w, x); }
    static Int next(Int sum, Int w, Int x) {
      if constexpr (is_signed) w = _mm512_xor_si512(w, _mm512_set1_epi8(static_cast<char>(0x80)));  // plus 128
      return _mm512_dpbusd_epi32(sum, w, x);
    }
    static Int widen(Int sum) { return sum; }
  };

  static Int word_dots(Int sum, Int w, Int x) { return _mm512_dpwssd_epi32(sum, w, x); }
};

}  // namespace
}  // namespace kbench
#endif
