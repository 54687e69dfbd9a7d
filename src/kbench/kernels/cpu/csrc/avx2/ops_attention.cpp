// Attention over a stretch of the cache, eight floats at a time, in units of kAttentionUnit positions:
//   scores[rows][unit] = q[rows][d_k] . k[unit][d_k]     few rows: dot products straight from the cache;
//                                                        many rows: outer products with K transposed once per unit
//   online softmax                                       maximum and sum per row, the output shrunk when they move
//   out[rows][d_v] += weights[rows][unit] . v[unit][d_v] outer products, V widened to float once per unit
#include <immintrin.h>

#include "exp.h"
#include "op_table.h"

namespace kbench {
namespace {

constexpr int64_t kUnit = kAttentionUnit;
// From so many rows on, transposing K pays: it costs about as much as four rows of dot products.
constexpr int64_t kRowsForPanels = 8;

template <bool kHalf>
const void* at(const void* data, int64_t index) {
  return kHalf ? static_cast<const void*>(static_cast<const uint16_t*>(data) + index)
               : static_cast<const void*>(static_cast<const float*>(data) + index);
}

template <bool kHalf>
__m256 load8(const void* data) {
  if (kHalf) return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(data)));
  return _mm256_loadu_ps(static_cast<const float*>(data));
}

template <bool kHalf>
float load1(const void* data) {
  return kHalf ? _cvtsh_ss(*static_cast<const uint16_t*>(data)) : *static_cast<const float*>(data);
}

float sum8(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

float max8(__m256 v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// Scores of kRows rows against four positions at a time: 4 * kRows accumulators, at most 12 of the 16 registers.
template <int kRows, bool kHalf>
void score_rows(const AttentionBlock& b, int64_t row, int64_t begin, int64_t n, float* scores) {
  const int64_t d = b.d_k, whole = d & ~int64_t{7};
  for (int64_t j = 0; j < n; j += 4) {
    const void* k[4];
    for (int64_t p = 0; p < 4; ++p) {
      const int64_t position = begin + (j + p < n ? j + p : n - 1);  // repeats the last one; its score is not used
      k[p] = at<kHalf>(b.k, position * b.k_stride);
    }
    __m256 acc[kRows][4];
    for (auto& accumulators : acc) {
      for (auto& a : accumulators) a = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < whole; i += 8) {
      __m256 kv[4];
      for (int p = 0; p < 4; ++p) kv[p] = load8<kHalf>(at<kHalf>(k[p], i));
      for (int r = 0; r < kRows; ++r) {
        const __m256 q = _mm256_loadu_ps(b.q + (row + r) * d + i);
        for (int p = 0; p < 4; ++p) acc[r][p] = _mm256_fmadd_ps(q, kv[p], acc[r][p]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const __m256 pairs01 = _mm256_hadd_ps(acc[r][0], acc[r][1]), pairs23 = _mm256_hadd_ps(acc[r][2], acc[r][3]);
      const __m256 quads = _mm256_hadd_ps(pairs01, pairs23);
      __m128 sums = _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
      if (whole < d) {
        alignas(16) float tail[4] = {};
        for (int p = 0; p < 4; ++p) {
          for (int64_t i = whole; i < d; ++i) tail[p] += b.q[(row + r) * d + i] * load1<kHalf>(at<kHalf>(k[p], i));
        }
        sums = _mm_add_ps(sums, _mm_load_ps(tail));
      }
      _mm_store_ps(scores + (row + r) * kUnit + j, sums);
    }
  }
}

void transpose8(__m256 (&v)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// panel[d_k][unit]: K of `n` positions transposed; columns past n hold the last position.
template <bool kHalf>
void transpose_keys(const AttentionBlock& b, int64_t begin, int64_t n, float* panel) {
  const int64_t d = b.d_k, whole = d & ~int64_t{7};
  for (int64_t j = 0; j < kUnit; j += 8) {
    const void* k[8];
    for (int64_t p = 0; p < 8; ++p) k[p] = at<kHalf>(b.k, (begin + (j + p < n ? j + p : n - 1)) * b.k_stride);
    for (int64_t i = 0; i < whole; i += 8) {
      __m256 v[8];
      for (int p = 0; p < 8; ++p) v[p] = load8<kHalf>(at<kHalf>(k[p], i));
      transpose8(v);
      for (int p = 0; p < 8; ++p) _mm256_store_ps(panel + (i + p) * kUnit + j, v[p]);
    }
    for (int64_t i = whole; i < d; ++i) {
      for (int p = 0; p < 8; ++p) panel[i * kUnit + j + p] = load1<kHalf>(at<kHalf>(k[p], i));
    }
  }
}

template <int kRows>
void score_panel(const AttentionBlock& b, int64_t row, const float* panel, float* scores) {
  const int64_t d = b.d_k;
  const float* q0 = b.q + row * d;
  for (int64_t j = 0; j < kUnit; j += 16) {
    __m256 acc[kRows][2];
    for (auto& a : acc) a[0] = a[1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < d; ++i) {
      const __m256 k0 = _mm256_load_ps(panel + i * kUnit + j), k1 = _mm256_load_ps(panel + i * kUnit + j + 8);
      for (int r = 0; r < kRows; ++r) {
        const __m256 q = _mm256_broadcast_ss(q0 + r * d + i);
        acc[r][0] = _mm256_fmadd_ps(q, k0, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(q, k1, acc[r][1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      _mm256_store_ps(scores + (row + r) * kUnit + j, acc[r][0]);
      _mm256_store_ps(scores + (row + r) * kUnit + j + 8, acc[r][1]);
    }
  }
}

// Turns a row of scores into weights exp(score - maximum) and brings maximum, sum and output up to date.
void softmax_row(float* scores, int64_t n, float& max, float& sum, float* out, int64_t d_v) {
  const float infinity = __builtin_inff();
  for (int64_t j = n < 0 ? 0 : n; j < kUnit; ++j) scores[j] = -infinity;
  __m256 v[kUnit / 8];
  for (int64_t j = 0; j < kUnit / 8; ++j) v[j] = _mm256_load_ps(scores + 8 * j);
  const float unit_max = max8(_mm256_max_ps(_mm256_max_ps(v[0], v[1]), _mm256_max_ps(v[2], v[3])));
  const float new_max = unit_max > max ? unit_max : max;
  if (new_max == -infinity) {  // nothing visible yet
    for (int64_t j = 0; j < kUnit; ++j) scores[j] = 0;
    return;
  }
  if (new_max > max) {
    const __m256 shrink = exp_ps(_mm256_set1_ps(max - new_max));
    const float factor = _mm256_cvtss_f32(shrink);
    sum *= factor;
    int64_t i = 0;
    for (; i + 8 <= d_v; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(out + i), shrink));
    for (; i < d_v; ++i) out[i] *= factor;
    max = new_max;
  }
  const __m256 m = _mm256_set1_ps(max);
  __m256 total = _mm256_setzero_ps();
  for (int64_t j = 0; j < kUnit / 8; ++j) {
    const __m256 weight = exp_ps(_mm256_sub_ps(v[j], m));
    total = _mm256_add_ps(total, weight);
    _mm256_store_ps(scores + 8 * j, weight);
  }
  sum += sum8(total);
}

// out[kRows][d_v] += weights . V of n positions, 16 columns at a time.
template <int kRows, bool kHalf>
void weigh_values(const AttentionBlock& b, int64_t row, const void* v, int64_t stride, int64_t n, const float* weights) {
  const float* w = weights + row * kUnit;
  const int64_t d = b.d_v;
  float* out = b.out + row * d;
  int64_t i = 0;
  for (; i + 16 <= d; i += 16) {
    __m256 acc[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = _mm256_loadu_ps(out + r * d + i);
      acc[r][1] = _mm256_loadu_ps(out + r * d + i + 8);
    }
    for (int64_t j = 0; j < n; ++j) {
      const __m256 v0 = load8<kHalf>(at<kHalf>(v, j * stride + i)), v1 = load8<kHalf>(at<kHalf>(v, j * stride + i + 8));
      for (int r = 0; r < kRows; ++r) {
        const __m256 weight = _mm256_broadcast_ss(w + r * kUnit + j);
        acc[r][0] = _mm256_fmadd_ps(weight, v0, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(weight, v1, acc[r][1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(out + r * d + i, acc[r][0]);
      _mm256_storeu_ps(out + r * d + i + 8, acc[r][1]);
    }
  }
  for (; i + 8 <= d; i += 8) {
    for (int r = 0; r < kRows; ++r) {
      __m256 acc = _mm256_loadu_ps(out + r * d + i);
      for (int64_t j = 0; j < n; ++j) {
        acc = _mm256_fmadd_ps(_mm256_broadcast_ss(w + r * kUnit + j), load8<kHalf>(at<kHalf>(v, j * stride + i)), acc);
      }
      _mm256_storeu_ps(out + r * d + i, acc);
    }
  }
  for (; i < d; ++i) {
    for (int r = 0; r < kRows; ++r) {
      float acc = out[r * d + i];
      for (int64_t j = 0; j < n; ++j) acc += w[r * kUnit + j] * load1<kHalf>(at<kHalf>(v, j * stride + i));
      out[r * d + i] = acc;
    }
  }
}

template <bool kHalf>
void weigh_all(const AttentionBlock& b, const void* v, int64_t stride, int64_t n, const float* weights) {
  int64_t row = 0;
  for (; row + 6 <= b.rows; row += 6) weigh_values<6, kHalf>(b, row, v, stride, n, weights);
  switch (b.rows - row) {
    case 5: weigh_values<5, kHalf>(b, row, v, stride, n, weights); break;
    case 4: weigh_values<4, kHalf>(b, row, v, stride, n, weights); break;
    case 3: weigh_values<3, kHalf>(b, row, v, stride, n, weights); break;
    case 2: weigh_values<2, kHalf>(b, row, v, stride, n, weights); break;
    case 1: weigh_values<1, kHalf>(b, row, v, stride, n, weights); break;
    default: break;
  }
}

void score_all_panel(const AttentionBlock& b, const float* panel, float* scores) {
  int64_t row = 0;
  for (; row + 6 <= b.rows; row += 6) score_panel<6>(b, row, panel, scores);
  switch (b.rows - row) {
    case 5: score_panel<5>(b, row, panel, scores); break;
    case 4: score_panel<4>(b, row, panel, scores); break;
    case 3: score_panel<3>(b, row, panel, scores); break;
    case 2: score_panel<2>(b, row, panel, scores); break;
    case 1: score_panel<1>(b, row, panel, scores); break;
    default: break;
  }
}

template <bool kHalf>
void score_all_rows(const AttentionBlock& b, int64_t begin, int64_t n, float* scores) {
  int64_t row = 0;
  for (; row + 3 <= b.rows; row += 3) score_rows<3, kHalf>(b, row, begin, n, scores);
  if (b.rows - row == 2) score_rows<2, kHalf>(b, row, begin, n, scores);
  if (b.rows - row == 1) score_rows<1, kHalf>(b, row, begin, n, scores);
}

void widen_values(const AttentionBlock& b, int64_t begin, int64_t n, float* panel) {
  for (int64_t j = 0; j < n; ++j) {
    const void* v = at<true>(b.v, (begin + j) * b.v_stride);
    int64_t i = 0;
    for (; i + 8 <= b.d_v; i += 8) _mm256_storeu_ps(panel + j * b.d_v + i, load8<true>(at<true>(v, i)));
    for (; i < b.d_v; ++i) panel[j * b.d_v + i] = load1<true>(at<true>(v, i));
  }
}

float* aligned(float* p) { return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63}); }

template <bool kHalf>
void attention_of(const AttentionBlock& b) {
  float* scores = aligned(b.scratch);
  float* keys = aligned(scores + kAttentionRows * kUnit);
  float* values = aligned(keys + b.d_k * kUnit);
  for (int64_t r = 0; r < b.rows; ++r) {
    b.max[r] = -__builtin_inff();
    b.sum[r] = 0;
  }
  for (int64_t i = 0; i < b.rows * b.d_v; ++i) b.out[i] = 0;
  const bool panels = b.rows >= kRowsForPanels;
  for (int64_t begin = b.begin; begin < b.end; begin += kUnit) {
    const int64_t n = b.end - begin < kUnit ? b.end - begin : kUnit;
    if (panels) {
      transpose_keys<kHalf>(b, begin, n, keys);
      score_all_panel(b, keys, scores);
    } else {
      score_all_rows<kHalf>(b, begin, n, scores);
    }
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t seen = b.visible[r] - begin;
      softmax_row(scores + r * kUnit, seen < n ? seen : n, b.max[r], b.sum[r], b.out + r * b.d_v, b.d_v);
    }
    if (kHalf && panels) {
      widen_values(b, begin, n, values);
      weigh_all<false>(b, values, b.d_v, n, scores);
    } else {
      weigh_all<kHalf>(b, at<kHalf>(b.v, begin * b.v_stride), b.v_stride, n, scores);
    }
  }
}

void attention(const AttentionBlock& b) {
  if (b.half) {
    attention_of<true>(b);
  } else {
    attention_of<false>(b);
  }
}

}  // namespace

void fill_op_table_avx2_attention(OpTable& table) { table.attention = attention; }

}  // namespace kbench
