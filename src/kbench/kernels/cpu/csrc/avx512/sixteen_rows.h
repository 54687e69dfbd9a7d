// Registers of sixteen rows: what the AVX-512 instruction sets share. avx2/registers.h says what each name is.
#pragma once
#include "intrinsics.h"

#include <cstdint>
#include <cstring>

namespace kbench {
namespace {

struct SixteenRows {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kRows = 16;
  // Two tiles of 16 rows times 6 activation rows load 8 registers for 12 products, one tile times 12 rows loads 13, and
  // there are two load ports for two multipliers. Modelled (llvm-mca, Ice Lake server), a block of words in 12 sums: 140
  // cycles against 167. Products alone would take 96.
  static constexpr int kPanelRows = 6;
  static constexpr int kPanelTiles = 2;

  static Int load(const uint8_t* p) { return _mm512_load_si512(p); }
  static void store(uint8_t* p, Int v) { _mm512_store_si512(p, v); }
  static Int zero_int() { return _mm512_setzero_si512(); }
  static Int bytes(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
  static Int int16s(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
  static Int and_(Int a, Int b) { return _mm512_and_si512(a, b); }
  static Int or_(Int a, Int b) { return _mm512_or_si512(a, b); }
  template <int n>
  static Int right(Int a) {
    return _mm512_srli_epi16(a, n);
  }
  template <int n>
  static Int left(Int a) {
    return _mm512_slli_epi16(a, n);
  }
  template <int n>
  static Int right_signed(Int a) {
    return _mm512_srai_epi16(a, n);
  }
  static Int subtract_int16(Int a, Int b) { return _mm512_sub_epi16(a, b); }
  static Int multiply_int16(Int a, Int b) { return _mm512_mullo_epi16(a, b); }
  static Int add_int32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int add_bytes(Int a, Int b) { return _mm512_add_epi8(a, b); }
  static Int table(const int8_t* values) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  static Int look_up(Int table, Int nibbles) { return _mm512_shuffle_epi8(table, nibbles); }
  static Int broadcast(const void* p) {
    int32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return _mm512_set1_epi32(dword);
  }

  static Float broadcast_float(const void* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return _mm512_set1_ps(value);
  }
  static Float zero() { return _mm512_setzero_ps(); }
  static Float floats(float value) { return _mm512_set1_ps(value); }
  static Float load_floats(const float* p) { return _mm512_load_ps(p); }
  static void store_floats(float* p, Float v) { _mm512_store_ps(p, v); }
  static Float multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float subtract(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }

  static Float halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Float bfloats(const uint8_t* p) {
    const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Float singles(const uint8_t* p) { return _mm512_load_ps(reinterpret_cast<const float*>(p)); }
  static Float uint8s(const uint8_t* p) { return to_float(_mm512_cvtepu8_epi32(sixteen(p))); }
  static Float int8s(const uint8_t* p) { return to_float(_mm512_cvtepi8_epi32(sixteen(p))); }
  static Float low_nibbles(const uint8_t* p) {
    return to_float(_mm512_and_si512(_mm512_cvtepu8_epi32(sixteen(p)), _mm512_set1_epi32(15)));
  }
  static Float high_nibbles(const uint8_t* p) { return to_float(_mm512_srli_epi32(_mm512_cvtepu8_epi32(sixteen(p)), 4)); }
  // The product of two halves of the exponent: both are normal numbers, whatever e is.
  static Float exponents(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(sixteen(p)), bias = _mm512_set1_epi32(63);
    const __m512i low = _mm512_add_epi32(_mm512_srli_epi32(e, 1), bias);
    const __m512i high = _mm512_add_epi32(_mm512_srli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(1)), 1), bias);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(low, 23)), _mm512_castsi512_ps(_mm512_slli_epi32(high, 23)));
  }
  static Int int8_pairs(const uint8_t* p) { return _mm512_cvtepi8_epi16(twice(sixteen(p))); }
  static Int nibble_pairs(const uint8_t* p) {
    return _mm512_cvtepi8_epi16(twice(_mm_and_si128(sixteen(p), _mm_set1_epi8(15))));
  }

 protected:
  static __m128i sixteen(const uint8_t* p) { return _mm_load_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m256i twice(__m128i v) { return _mm256_set_m128i(_mm_unpackhi_epi8(v, v), _mm_unpacklo_epi8(v, v)); }
};

}  // namespace
}  // namespace kbench
