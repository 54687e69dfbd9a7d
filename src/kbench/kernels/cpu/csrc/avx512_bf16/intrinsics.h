// The two BF16 instructions on plain registers: the CPU's, or, with KBENCH_SIMDE, what they compute.
#pragma once
#include "../avx512/intrinsics.h"

namespace kbench {
namespace {

#if !defined(KBENCH_SIMDE)
// sum[i] + w[2i] * x[2i] + w[2i + 1] * x[2i + 1] of bfloat16 values.
inline __m512 bf16_dots(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}
// To nearest, ties to even; numbers under 2^-126 to 0.
inline __m256i round_to_bf16(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
#else
inline float emulated_bf16(uint16_t bits) {
  const uint32_t wide = (bits & 0x7f80u) == 0 ? 0 : static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
inline __m512 bf16_dots(__m512 sum, __m512i w, __m512i x) {
  float sums[16];
  uint16_t a[32], b[32];
  std::memcpy(sums, &sum, sizeof sums);
  std::memcpy(a, &w, sizeof a);
  std::memcpy(b, &x, sizeof b);
  for (int i = 0; i < 16; ++i) {
    for (int j = 2 * i + 1; j >= 2 * i; --j) sums[i] += emulated_bf16(a[j]) * emulated_bf16(b[j]);
  }
  std::memcpy(&sum, sums, sizeof sums);
  return sum;
}
inline __m256i round_to_bf16(__m512 x) {
  uint32_t bits[16];
  uint16_t out[16];
  std::memcpy(bits, &x, sizeof bits);
  for (int i = 0; i < 16; ++i) {
    const bool nan = (bits[i] & 0x7fffffffu) > 0x7f800000u, small = (bits[i] & 0x7f800000u) == 0;
    const uint32_t nearest = bits[i] + 0x7fff + (bits[i] >> 16 & 1);
    const uint32_t rounded = nan ? bits[i] | 0x400000u : small ? bits[i] & 0x80000000u : nearest;
    out[i] = static_cast<uint16_t>(rounded >> 16);
  }
  __m256i result;
  std::memcpy(&result, out, sizeof result);
  return result;
}
#endif

}  // namespace
}  // namespace kbench
