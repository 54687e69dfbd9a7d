// The AVX-512 intrinsics: the compiler's own, or, with KBENCH_SIMDE, an emulation in plain C by the SIMDe headers, so
// that the sources of this folder can be tested on a CPU without AVX-512.
#pragma once
#if !defined(KBENCH_SIMDE)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own "undefined" source registers
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <cstdint>
#include <cstring>

// SIMDe 0.7.4 gives this alias the arguments of another function.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

// What SIMDe 0.7.4 does not have yet; a later one defines these names as macros.
namespace kbench {
namespace {

template <class From, class To, class Source>
inline void widen_lanes(const Source& source, To* out) {
  From lanes[16];
  std::memcpy(lanes, &source, sizeof lanes);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<To>(lanes[i]);
}

template <class From, class Source>
inline simde__m512i widen_to_int(const Source& source) {
  int32_t lanes[16];
  widen_lanes<From>(source, lanes);
  return simde_mm512_loadu_si512(lanes);
}

}  // namespace
}  // namespace kbench

#if !defined(_mm512_cvtepu8_epi32)
#define _mm512_cvtepu8_epi32(a) ::kbench::widen_to_int<uint8_t>(a)
#endif
#if !defined(_mm512_cvtepi8_epi32)
#define _mm512_cvtepi8_epi32(a) ::kbench::widen_to_int<int8_t>(a)
#endif
#if !defined(_mm512_cvtepu16_epi32)
#define _mm512_cvtepu16_epi32(a) ::kbench::widen_to_int<uint16_t>(a)
#endif
#if !defined(_mm512_cvtepi32_ps)
namespace kbench {
namespace {
inline simde__m512 emulated_cvtepi32_ps(simde__m512i a) {
  float lanes[16];
  widen_lanes<int32_t>(a, lanes);
  return simde_mm512_loadu_ps(lanes);
}
}  // namespace
}  // namespace kbench
#define _mm512_cvtepi32_ps(a) ::kbench::emulated_cvtepi32_ps(a)
#endif
#if !defined(_mm512_cvtph_ps)
namespace kbench {
namespace {
inline simde__m512 emulated_cvtph_ps(simde__m256i a) {
  float lanes[16];
  for (int i = 0; i < 4; ++i) {
    uint64_t four;
    std::memcpy(&four, reinterpret_cast<const char*>(&a) + 8 * i, sizeof four);
    simde_mm_storeu_ps(lanes + 4 * i, simde_mm_cvtph_ps(simde_mm_set_epi64x(0, static_cast<int64_t>(four))));
  }
  return simde_mm512_loadu_ps(lanes);
}
}  // namespace
}  // namespace kbench
#define _mm512_cvtph_ps(a) ::kbench::emulated_cvtph_ps(a)
#endif
#endif
