// Probe loop of the byte products of AVX-VNNI.
#include <immintrin.h>

#include "probe_table.h"

namespace kbench {
namespace {

// Two ports times a latency of 5 cycles want 10 chains; 12 fill the registers that are free.
constexpr int kChains = 12;

int64_t peak_int8(int64_t rounds, float* sink) {
  __m256i acc[kChains];
  for (auto& a : acc) a = _mm256_setzero_si256();
  __m256i x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(5);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+x"(x), "+x"(w));
    for (auto& a : acc) a = _mm256_dpbusd_avx_epi32(a, x, w);
  }
  __m256i sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  *sink = static_cast<float>(_mm256_extract_epi32(sum, 0));
  return rounds * kChains * 32 * 2;
}

}  // namespace

void fill_probe_table_avx_vnni(ProbeTable& table) { table.int8 = peak_int8; }

}  // namespace kbench
