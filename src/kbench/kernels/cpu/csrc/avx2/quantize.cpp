// Activations to int8, the same bits as scalar/quantize.cpp.
#include "../matmul_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "../packed_layout.h"
#include "../quantized_range.h"

namespace kbench {
namespace {

inline uint32_t largest_lane(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

inline int sum_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

struct Rounded {
  __m256i n[4];
  bool finite;
};

// x ~ n * scale with scale = absmax / most, or nothing: scale and sums are written, n only where `finite`.
inline Rounded round_block(const __m256 v[4], float most, float* scale, float* sum) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  const uint32_t bits = largest_lane(largest);
  Rounded out;
  out.finite = bits >= kSmallestBits && bits < kInfinityBits;
  if (!out.finite) {
    const uint32_t value = bits < kSmallestBits ? 0 : kNanBits;
    std::memcpy(scale, &value, sizeof value);
    std::memcpy(sum, &value, sizeof value);
    std::memcpy(sum + 1, &value, sizeof value);
    return out;
  }
  float absmax;
  std::memcpy(&absmax, &bits, sizeof absmax);
  const __m256 inverse = _mm256_set1_ps(most / absmax);
  for (int i = 0; i < 4; ++i) out.n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));  // nearest, ties to even
  const int first = sum_lanes(_mm256_add_epi32(out.n[0], out.n[1]));
  const int second = sum_lanes(_mm256_add_epi32(out.n[2], out.n[3]));
  *scale = absmax / most;
  sum[0] = *scale * static_cast<float>(first + second);
  sum[1] = *scale * static_cast<float>(first);
  return out;
}

// v becomes what rounding took.
inline void quantize_bytes(__m256 v[4], int8_t* q, float* scale, float* sum) {
  const Rounded r = round_block(v, kByteMost, scale, sum);
  if (!r.finite) {
    std::memset(q, 0, kBlock);
    return;
  }
  // Packing works within 128-bit lanes; the permutation puts the dwords back into order.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(r.n[0], r.n[1]), _mm256_packs_epi32(r.n[2], r.n[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(packed, order));
  for (int i = 0; i < 4; ++i) v[i] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(r.n[i]), _mm256_set1_ps(*scale), v[i]);
}

inline void quantize_words(const __m256 v[4], int16_t* words, float* scale, float* sum) {
  const Rounded r = round_block(v, kWordMost, scale, sum);
  if (!r.finite) {
    std::memset(words, 0, kBlock * sizeof *words);
    return;
  }
  for (int i = 0; i < 2; ++i) {
    // Quads a b | c d and e f | g h of both registers pack to a e b f within lanes; back in order, then 0 2 1 3.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(r.n[2 * i], r.n[2 * i + 1]), 0xd8);
    const __m256i mixed = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(packed, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 16 * i), mixed);
  }
}

}  // namespace

namespace avx2 {

void quantize(const Activation& a, int64_t token_begin, int64_t token_end) {
  const int64_t blocks = (a.ldq == 0 ? a.k : a.ldq) / kBlock;
  for (int64_t t = token_begin; t < token_end; ++t) {
    for (int64_t block = 0; block < a.k / kBlock; ++block) {
      __m256 v[4];
      for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(a.x + t * a.ldx + block * kBlock + 8 * i);
      if (a.words != nullptr) {
        const int64_t at = t * blocks + block;
        quantize_words(v, a.words + at * kBlock, a.word_scale + at, a.word_sum + 2 * at);
      }
      for (int plane = 0; plane < a.planes && a.q != nullptr; ++plane) {
        const int64_t at = (t * a.planes + plane) * blocks + block;
        quantize_bytes(v, a.q + at * kBlock, a.scale + at, a.sum + 2 * at);
      }
    }
  }
}

void fill_own(MatmulTable& table) { table.quantize = quantize; }

}  // namespace avx2
}  // namespace kbench
#endif
