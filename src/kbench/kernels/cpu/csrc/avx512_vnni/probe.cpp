// Probe loop of the byte products of AVX-512 VNNI.
#include <immintrin.h>

#include "probe_table.h"

namespace kbench {
namespace {

// Two ports times a latency of 4 to 5 cycles want 10 chains; 16 leave half of the 32 registers.
constexpr int kChains = 16;

int64_t peak_int8(int64_t rounds, float* sink) {
  __m512i acc[kChains];
  for (auto& a : acc) a = _mm512_setzero_si512();
  __m512i x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(5);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(x), "+v"(w));
    for (auto& a : acc) a = _mm512_dpbusd_epi32(a, x, w);
  }
  __m512i sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, sum);
  *sink = static_cast<float>(lanes[0]);
  return rounds * kChains * 64 * 2;
}

}  // namespace

void fill_probe_table_avx512_vnni(ProbeTable& table) { table.int8 = peak_int8; }

}  // namespace kbench
