// Registers of eight rows: what AVX2 and AVX2 with VNNI share. registers.h says what a kernel needs of an ISA.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace kbench {
namespace {

struct EightRows {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kRows = 8;

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

 protected:
  static __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
};

}  // namespace
}  // namespace kbench
