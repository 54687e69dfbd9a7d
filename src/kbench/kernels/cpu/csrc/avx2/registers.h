// AVX2 as the kernels in matmul/ see an ISA: registers of 8 rows, and how integer products are added up.
//
// What a kernel needs of an ISA, here and in the registers.h of the others:
//   kRows                    rows in a register: a line (64 bytes, 16 rows) is kTileRows / kRows registers
//   Int, Float               registers of bytes, int16 or int32, and of floats, one dword for each row
//   kLineRows, kPanelRows    the most activation rows that a line kernel and a panel kernel multiply at a
//                            time; kFloatRows: of float formats
//   Dots<most, signed>       sums of byte products, see there
//   word_dots                the same for int16
#pragma once
#if defined(__x86_64__)
#define KBENCH_HAS_REGISTERS
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace kbench {
namespace {

struct Registers {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kRows = 8;
  // Line kernels: 16 rows times so many activation rows. Measured on Zen 3: more than 5 spill.
  static constexpr int kLineRows = 4;
  // Panel kernels: 8 sums, two registers of weights, one of activations and the products on their way. With 5 or 6 rows
  // some spill: 13 % slower for bytes, the same for words (Zen 3, in turns).
  static constexpr int kPanelRows = 4;
  // Of floats, which need no other registers: 12 sums.
  static constexpr int kFloatRows = 6;
  // Registers of a line that a line kernel takes at once: both.
  static constexpr int kLineRegisters = 2;
  // Signed bytes are multiplied as they are, see Dots.
  static constexpr bool kShiftsSigned = false;
  // Products of a group of 16 weights are scaled by its integer scale as they are widened: one madd does both.
  static constexpr bool kScalesDots = true;
  // Bytes of 8 bits, or more than four quads of 6 bits, would saturate the int16 that maddubs adds up in: words are as
  // fast, so those formats have no panels of bytes.
  static constexpr int kMostOfBytePanel = 31;
  static constexpr bool kHasWords = true;
  static constexpr bool kPairsRows = false;  // see matmul/pair_panel.h
  // From how many tokens on panels are faster, by the largest weight and the planes. Measured on Zen 3, matrices of 24
  // MiB in turns: with two planes lines and panels meet at 12 tokens for nibbles, at 5 for five bits, at 3 for Q3_K, Q6_K
  // and IQ4_XS, at 5 for Q8_0; with one plane at 12 for Q6_K and at 16 or later for the others.
  static constexpr int64_t panel_tokens(int most, int planes) {
    return planes == 1 ? 16 : most == 15 ? 12 : most == 31 ? 5 : 4;
  }

  static Int load(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store(uint8_t* p, Int v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  static Int zero_int() { return _mm256_setzero_si256(); }
  static Int bytes(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
  static Int int16s(int value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
  static Int and_(Int a, Int b) { return _mm256_and_si256(a, b); }
  static Int or_(Int a, Int b) { return _mm256_or_si256(a, b); }
  // Shifts of 16-bit lanes.
  template <int n>
  static Int right(Int a) {
    return _mm256_srli_epi16(a, n);
  }
  template <int n>
  static Int left(Int a) {
    return _mm256_slli_epi16(a, n);
  }
  template <int n>
  static Int right_signed(Int a) {
    return _mm256_srai_epi16(a, n);
  }
  static Int subtract_int16(Int a, Int b) { return _mm256_sub_epi16(a, b); }
  static Int multiply_int16(Int a, Int b) { return _mm256_mullo_epi16(a, b); }
  static Int add_int32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  // table[nibble] for every byte of `nibbles`.
  static Int table(const int8_t* values) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  static Int add_bytes(Int a, Int b) { return _mm256_add_epi8(a, b); }
  static Int look_up(Int table, Int nibbles) { return _mm256_shuffle_epi8(table, nibbles); }
  // Four bytes, or two int16, for all rows.
  static Int broadcast(const void* p) {
    int32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return _mm256_set1_epi32(dword);
  }

  static Float broadcast_float(const void* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return _mm256_set1_ps(value);
  }

  static Float zero() { return _mm256_setzero_ps(); }
  static Float floats(float value) { return _mm256_set1_ps(value); }
  static Float load_floats(const float* p) { return _mm256_load_ps(p); }
  static void store_floats(float* p, Float v) { _mm256_store_ps(p, v); }
  static Float multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }

  // One value for each row, stored as float16, bfloat16, float32, uint8, int8.
  static Float halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p))); }
  static Float bfloats(const uint8_t* p) {
    const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Float singles(const uint8_t* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }
  static Float uint8s(const uint8_t* p) { return to_float(_mm256_cvtepu8_epi32(eight(p))); }
  static Float int8s(const uint8_t* p) { return to_float(_mm256_cvtepi8_epi32(eight(p))); }
  static Float low_nibbles(const uint8_t* p) {
    return to_float(_mm256_and_si256(_mm256_cvtepu8_epi32(eight(p)), _mm256_set1_epi32(15)));
  }
  static Float high_nibbles(const uint8_t* p) { return to_float(_mm256_srli_epi32(_mm256_cvtepu8_epi32(eight(p)), 4)); }
  // 2^(e - 128) of e, as MXFP4 stores scales: the product of two halves of the exponent, both normal numbers.
  static Float exponents(const uint8_t* p) {
    const __m256i e = _mm256_cvtepu8_epi32(eight(p)), bias = _mm256_set1_epi32(63);
    const __m256i low = _mm256_add_epi32(_mm256_srli_epi32(e, 1), bias);
    const __m256i high = _mm256_add_epi32(_mm256_srli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(1)), 1), bias);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(low, 23)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 23)));
  }
  // The integer scale of each row, int8 or a low nibble, twice as int16: the shape of a dword of two int16 sums.
  static Int int8_pairs(const uint8_t* p) {
    const __m128i twice = _mm_unpacklo_epi8(eight(p), eight(p));
    return _mm256_cvtepi8_epi16(twice);
  }
  static Int nibble_pairs(const uint8_t* p) {
    const __m128i low = _mm_and_si128(eight(p), _mm_set1_epi8(15));
    return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, low));
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

 private:
  static __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
};

}  // namespace
}  // namespace kbench
#endif
