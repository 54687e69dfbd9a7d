// AVX2 as the kernels in matmul/ see an ISA: registers of 8 rows, and how integer products are added up.
//
// What a kernel needs of an ISA, here and in the registers.h of the others:
//   kRows                    rows in a register: a line (64 bytes, 16 rows) is kTileRows / kRows registers
//   Int, Float               registers of bytes, int16 or int32, and of floats, one dword for each row
//   kLineRows, kPanelRows    the most activation rows that a line kernel and a panel kernel multiply at a
//                            time; kFloatRows: of float formats
//   kPanelTiles              tiles that a panel kernel multiplies with those rows
//   kScaledPanelRows         as kPanelRows, where integer scales multiply sums (kScalesDots)
//   Dots<most, signed>       sums of byte products, see there
//   word_dots                the same for int16
#pragma once
#if defined(__x86_64__)
#define KBENCH_HAS_REGISTERS
#include "../matmul_table.h"
#include "eight_rows.h"

namespace kbench {
namespace {

struct Registers : EightRows {
  // Line kernels: 16 rows times so many activation rows. Measured on Zen 3: more than 5 spill.
  static constexpr int kLineRows = 4;
  // Panel kernels: 8 sums, two registers of weights, one of activations and the products on their way. With 5 or 6 rows
  // some spill: 13 % slower for bytes, the same for words (Zen 3, in turns).
  static constexpr int kPanelRows = 4;
  static constexpr int kPanelTiles = 1;
  // With integer scales 8 more sums, of blocks, live beside those of groups. Measured on Zen 3, Q6_K: 157 Gop/s with 3
  // rows, 152 with 4, 138 with 6.
  static constexpr int kScaledPanelRows = 3;
  // Of floats, which need no other registers: 12 sums.
  static constexpr int kFloatRows = 6;
  // Registers of a line that a line kernel takes at once: both.
  static constexpr int kLineRegisters = 2;
  // Signed bytes are multiplied as they are, see Dots.
  static constexpr bool kShiftsSigned = false;
  // Products of a group of 16 weights are scaled by its integer scale as they are widened: one madd does both.
  static constexpr bool kScalesDots = true;
  // Two bytes of 8 bits would saturate the int16 that maddubs adds up in: those formats have no panels of bytes.
  static constexpr int kMostOfBytePanel = 63;
  static constexpr bool kHasWords = true;
  static constexpr bool kHasLines = true;  // else the line kernels of the ISA that it builds on stay
  static constexpr bool kPairsRows = false;  // see matmul/pair_panel.h
  // From how many tokens on panels are faster, by the largest weight and the planes. Measured on Zen 3, 4096 x 2048, two
  // threads, one run of each in turns, medians of 24 ratios. Two planes: panels are ahead from 8 tokens on for nibbles, 5
  // for MXFP4 (24), 4 for Q2_K, 3 for all others. One plane: from 5 on for Q2_K, Q3_K and Q6_K, 10 for five bits, 20 to 30
  // for nibbles, MXFP4 and IQ4_XS (127); experts of 24 pairs, whose weights come from memory, say 20. Q8_0 (128) has panels
  // of words only, and lines of bytes stay 10 % ahead of those at any number.
  static constexpr int64_t panel_tokens(int most, int planes) {
    if (planes == 2) return most == 15 ? 8 : most == 24 ? 5 : most == 3 ? 4 : 3;
    return most == 128 ? kManyTokens : most == 31 ? 10 : most == 15 || most == 24 || most == 127 ? 20 : 5;
  }

  // Makes a sum final at this point. Integer additions are plain `+` to the compiler: left alone it adds up at the end
  // of an unrolled loop, wants all products at once for that, and spills most of them.
  static void settle(Int& sum) { __asm__("" : "+x"(sum)); }

  // Sums of products of quads: each row's four weights of at most `most` with four int8 activations of at most 127.
  // maddubs adds two products in int16; kFit results of it fit, then they are widened to int32.
  template <int most, bool is_signed>
  struct Dots {
    static constexpr int kFit = is_signed ? 1 : 32767 / (2 * 127 * most);
    static_assert(kFit >= 1, "two products of an unsigned weight must fit int16");
    static Int first(Int w, Int x) {
      if constexpr (is_signed) {
        // maddubs wants one unsigned factor: |w| times x with the sign of w. 2 * 128 * 127 fits int16.
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
      } else {
        return _mm256_maddubs_epi16(w, x);
      }
    }
    static Int next(Int sum, Int w, Int x) {
      sum = _mm256_add_epi16(sum, first(w, x));
      settle(sum);
      return sum;
    }
    static Int widen(Int sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
    static Int widen_scaled(Int sum, Int pairs) { return _mm256_madd_epi16(sum, pairs); }
  };

  static Int word_dots(Int sum, Int w, Int x) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
    settle(sum);
    return sum;
  }
};

}  // namespace
}  // namespace kbench
#endif
