// AVX-512 without VNNI as the kernels in matmul/ see an ISA: AVX2's sums of products, sixteen rows at a time.
// avx2/registers.h says what each name is.
#pragma once
#if defined(__x86_64__)
#define KBENCH_HAS_REGISTERS
#include "sixteen_rows.h"

namespace kbench {
namespace {

struct Registers : SixteenRows {
  static constexpr int kLineRows = 6;
  static constexpr int kLineRegisters = 1;
  static constexpr int kFloatRows = 12;
  static constexpr bool kShiftsSigned = false;
  static constexpr bool kScalesDots = true;
  static constexpr int kMostOfBytePanel = 63;
  static constexpr int kScaledPanelRows = 6;
  static constexpr bool kHasWords = true;
  static constexpr bool kHasLines = true;
  static constexpr bool kPairsRows = false;
  // Not measured: no such machine was at hand.
  static constexpr int64_t panel_tokens(int, int planes) { return planes == 1 ? 16 : 8; }

#if defined(KBENCH_SIMDE)
  static void settle(Int&) {}
#else
  static void settle(Int& sum) { __asm__("" : "+v"(sum)); }
#endif

  template <int most, bool is_signed>
  struct Dots {
    static constexpr int kFit = is_signed ? 1 : 32767 / (2 * 127 * most);
    static_assert(kFit >= 1, "two products of an unsigned weight must fit int16");
    static Int first(Int w, Int x) {
      if constexpr (is_signed) {
        // There is no sign_epi8 of this width: x is negated where w is negative.
        const Int signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
        return _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
      } else {
        return _mm512_maddubs_epi16(w, x);
      }
    }
    static Int next(Int sum, Int w, Int x) {
      sum = _mm512_add_epi16(sum, first(w, x));
      settle(sum);
      return sum;
    }
    static Int widen(Int sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
    static Int widen_scaled(Int sum, Int pairs) { return _mm512_madd_epi16(sum, pairs); }
  };

  static Int word_dots(Int sum, Int w, Int x) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
    settle(sum);
    return sum;
  }
};

}  // namespace
}  // namespace kbench
#endif
