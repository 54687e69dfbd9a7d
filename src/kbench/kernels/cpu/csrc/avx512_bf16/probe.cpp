// Probe loop of the products of BF16 pairs.
#include <immintrin.h>

#include "probe_table.h"

namespace kbench {
namespace {

// Two ports times a latency of 6 cycles want 12 chains; 16 leave half of the 32 registers.
constexpr int kChains = 16;

int64_t peak_bf16(int64_t rounds, float* sink) {
  __m512 acc[kChains];
  for (auto& a : acc) a = _mm512_setzero_ps();
  __m512i x = _mm512_set1_epi32(0x3f803f80), w = _mm512_set1_epi32(0x3f003f00);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(x), "+v"(w));
    for (auto& a : acc) a = _mm512_dpbf16_ps(a, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
  __m512 sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  *sink = _mm512_cvtss_f32(sum);
  return rounds * kChains * 32 * 2;
}

}  // namespace

void fill_probe_table_avx512_bf16(ProbeTable& table) { table.bf16 = peak_bf16; }

}  // namespace kbench
