// Probe loops of AVX2 and FMA.
#include <immintrin.h>

#include "../unroll.h"
#include "probe_table.h"

namespace kbench {
namespace {

// Two FMA ports times a latency of 4 to 5 cycles: 10 chains keep both busy; 12 fill the registers that are free.
constexpr int kChains = 12;

int64_t peak_f32(int64_t rounds, float* sink) {
  __m256 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  __m256 f = _mm256_set1_ps(0.999999f), t = _mm256_set1_ps(1e-6f);
  asm volatile("" : "+x"(f), "+x"(t));
  for (int64_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) a = _mm256_fmadd_ps(a, f, t);
  }
  __m256 sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_ps(sum, acc[i]);
  *sink = _mm256_cvtss_f32(sum);
  return rounds * kChains * 8 * 2;
}

// The fastest exact int8 products without VNNI, of weights of four bits: eight results of maddubs fit int16 (see Dots in
// registers.h), then they are widened and accumulated. Every sum is made final where it is added up: left alone the
// compiler wants all products first, spills them, and finds two thirds of the peak.
int64_t peak_int8(int64_t rounds, float* sink) {
  constexpr int kSums = 8, kFit = 8;
  __m256i acc = _mm256_setzero_si256(), w = _mm256_set1_epi8(5);
  const __m256i x = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r) {
    __m256i sum[kSums];
    KBENCH_UNROLL
    for (int j = 0; j < kFit; ++j) {
      KBENCH_UNROLL
      for (int i = 0; i < kSums; ++i) {
        asm volatile("" : "+x"(w));  // keeps the product inside the loop
        const __m256i product = _mm256_maddubs_epi16(x, w);
        sum[i] = j == 0 ? product : _mm256_add_epi16(sum[i], product);
        asm volatile("" : "+x"(sum[i]));
      }
    }
    KBENCH_UNROLL
    for (int i = 0; i < kSums; ++i) acc = _mm256_add_epi32(acc, _mm256_madd_epi16(sum[i], ones));
  }
  *sink = static_cast<float>(_mm256_extract_epi32(acc, 0));
  return rounds * kSums * kFit * 32 * 2;
}

uint64_t read(const uint8_t* data, int64_t n_bytes) {
  __m256i sum[4];
  for (auto& s : sum) s = _mm256_setzero_si256();
  const __m256i* x = reinterpret_cast<const __m256i*>(data);
  for (int64_t i = 0; i < n_bytes / 32; i += 4) {
    _mm_prefetch(reinterpret_cast<const char*>(x + i + 64), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(x + i + 66), _MM_HINT_T0);
    for (int j = 0; j < 4; ++j) sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(x + i + j));
  }
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0)) + static_cast<uint64_t>(_mm256_extract_epi64(all, 1)) +
         static_cast<uint64_t>(_mm256_extract_epi64(all, 2)) + static_cast<uint64_t>(_mm256_extract_epi64(all, 3));
}

}  // namespace

void fill_probe_table_avx2(ProbeTable& table) {
  table.f32 = peak_f32;
  table.int8 = peak_int8;
  table.read = read;
}

}  // namespace kbench
