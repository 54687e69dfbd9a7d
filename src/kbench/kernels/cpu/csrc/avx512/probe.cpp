// Probe loops of AVX-512.
#include <immintrin.h>

#include "../unroll.h"
#include "probe_table.h"

namespace kbench {
namespace {

// Two ports times a latency of 4 to 5 cycles want 10 chains; 16 leave half of the 32 registers.
constexpr int kChains = 16;

int64_t peak_f32(int64_t rounds, float* sink) {
  __m512 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512 f = _mm512_set1_ps(0.999999f), t = _mm512_set1_ps(1e-6f);
  asm volatile("" : "+v"(f), "+v"(t));
  for (int64_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) a = _mm512_fmadd_ps(a, f, t);
  }
  __m512 sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  *sink = _mm512_cvtss_f32(sum);
  return rounds * kChains * 16 * 2;
}

// As AVX2 has to do it, see avx2/probe.cpp.
int64_t peak_int8(int64_t rounds, float* sink) {
  constexpr int kSums = 12, kFit = 8;
  __m512i acc = _mm512_setzero_si512(), w = _mm512_set1_epi8(5);
  const __m512i x = _mm512_set1_epi8(3), ones = _mm512_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r) {
    __m512i sum[kSums];
    KBENCH_UNROLL
    for (int j = 0; j < kFit; ++j) {
      KBENCH_UNROLL
      for (int i = 0; i < kSums; ++i) {
        asm volatile("" : "+v"(w));  // keeps the product inside the loop
        const __m512i product = _mm512_maddubs_epi16(x, w);
        sum[i] = j == 0 ? product : _mm512_add_epi16(sum[i], product);
        asm volatile("" : "+v"(sum[i]));
      }
    }
    KBENCH_UNROLL
    for (int i = 0; i < kSums; ++i) acc = _mm512_add_epi32(acc, _mm512_madd_epi16(sum[i], ones));
  }
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, acc);
  *sink = static_cast<float>(lanes[0]);
  return rounds * kSums * kFit * 64 * 2;
}

uint64_t read(const uint8_t* data, int64_t n_bytes) {
  __m512i sum[4];
  for (auto& s : sum) s = _mm512_setzero_si512();
  const __m512i* x = reinterpret_cast<const __m512i*>(data);
  for (int64_t i = 0; i < n_bytes / 64; i += 4) {
    for (int j = 0; j < 4; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(x + i + j + 32), _MM_HINT_T0);
      sum[j] = _mm512_add_epi64(sum[j], _mm512_load_si512(x + i + j));
    }
  }
  const __m512i all = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, all);
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace

void fill_probe_table_avx512(ProbeTable& table) {
  table.f32 = peak_f32;
  table.int8 = peak_int8;
  table.read = read;
}

}  // namespace kbench
