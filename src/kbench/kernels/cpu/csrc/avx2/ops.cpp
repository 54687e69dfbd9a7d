// The small operations, eight floats at a time.
#include <immintrin.h>

#include "exp.h"
#include "op_table.h"

namespace kbench {
namespace {

// The first `count` (< 8) of eight lanes, for the end of a row.
__m256i tail_mask(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

void rms_norm(const float* x, const float* weight, int64_t d, float eps, float* y) {
  // The sum in double: d squares of one sign lose d/2 units in float, and this costs nothing beside the loads.
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  int64_t i = 0;
  const auto square = [&](__m256 v) {
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    low = _mm256_fmadd_pd(a, a, low);
    high = _mm256_fmadd_pd(b, b, high);
  };
  for (; i + 8 <= d; i += 8) square(_mm256_loadu_ps(x + i));
  if (i < d) square(_mm256_maskload_ps(x + i, tail_mask(d - i)));
  low = _mm256_add_pd(low, high);
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(low), _mm256_extractf128_pd(low, 1));
  const double sum = _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
  const __m128d mean = _mm_set_sd(sum / static_cast<double>(d) + eps);
  const __m256 scale = _mm256_set1_ps(static_cast<float>(1.0 / _mm_cvtsd_f64(_mm_sqrt_sd(mean, mean))));
  for (i = 0; i + 8 <= d; i += 8) {
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
  }
  if (i < d) {
    const __m256i mask = tail_mask(d - i);
    const __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), scale);
    _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, mask)));
  }
}

__m256 silu(__m256 gate) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return _mm256_div_ps(gate, _mm256_add_ps(one, exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), gate))));
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_mul_ps(silu(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
  }
  if (i < n) {
    const __m256i mask = tail_mask(n - i);
    const __m256 g = _mm256_maskload_ps(gate + i, mask), u = _mm256_maskload_ps(up + i, mask);
    _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(silu(g), u));
  }
}

struct ClampedSwiglu {
  __m256 minus_alpha, limit, minus_limit, one;

  // Of min and max the second operand is what a NaN gives: the value itself.
  __m256 operator()(__m256 gate, __m256 up) const {
    const __m256 g = _mm256_min_ps(limit, gate);
    const __m256 u = _mm256_max_ps(minus_limit, _mm256_min_ps(limit, up));
    const __m256 gated = _mm256_div_ps(g, _mm256_add_ps(one, exp_ps(_mm256_mul_ps(minus_alpha, g))));
    return _mm256_mul_ps(gated, _mm256_add_ps(u, one));
  }
};

void clamped_swiglu(const float* gate, const float* up, int64_t n, float alpha, float limit, float* y) {
  const ClampedSwiglu join{_mm256_set1_ps(-alpha), _mm256_set1_ps(limit), _mm256_set1_ps(-limit), _mm256_set1_ps(1.0f)};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, join(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  if (i < n) {
    const __m256i mask = tail_mask(n - i);
    _mm256_maskstore_ps(y + i, mask, join(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask)));
  }
}

void add(const float* a, const float* b, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
  for (; i < n; ++i) y[i] = a[i] + b[i];
}

void add_scaled(const float* x, float weight, int64_t n, float* y) {
  const __m256 w = _mm256_set1_ps(weight);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_fmadd_ps(w, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }
  for (; i < n; ++i) y[i] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(weight), _mm_set_ss(x[i]), _mm_set_ss(y[i])));
}

void rope_norm(const float* x, const float* cosine, const float* sine, int64_t d, float* y) {
  int64_t i = 0;  // pairs
  for (; i + 4 <= d / 2; i += 4) {
    const __m256 v = _mm256_loadu_ps(x + 2 * i);
    const __m128 c4 = _mm_loadu_ps(cosine + i), s4 = _mm_loadu_ps(sine + i);
    const __m256 c = _mm256_set_m128(_mm_unpackhi_ps(c4, c4), _mm_unpacklo_ps(c4, c4));
    const __m256 s = _mm256_set_m128(_mm_unpackhi_ps(s4, s4), _mm_unpacklo_ps(s4, s4));
    const __m256 swapped = _mm256_permute_ps(v, 0xb1);
    _mm256_storeu_ps(y + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, c), _mm256_mul_ps(swapped, s)));
  }
  for (; i < d / 2; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cosine[i] - b * sine[i];
    y[2 * i + 1] = a * sine[i] + b * cosine[i];
  }
}

void rope_neox(const float* x, const float* cosine, const float* sine, int64_t d, float* y) {
  const int64_t half = d / 2;
  int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
    const __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i);
    _mm256_storeu_ps(y + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
    _mm256_storeu_ps(y + i + half, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    y[i] = a * cosine[i] - b * sine[i];
    y[i + half] = a * sine[i] + b * cosine[i];
  }
}

void scale_by(const float* x, float scale, int64_t n, float* y) {
  const __m256 s = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), s));
  for (; i < n; ++i) y[i] = x[i] * scale;
}

}  // namespace

void fill_op_table_avx2(OpTable& table) {
  table.rms_norm = rms_norm;
  table.silu_mul = silu_mul;
  table.clamped_swiglu = clamped_swiglu;
  table.add = add;
  table.add_scaled = add_scaled;
  table.rope_norm = rope_norm;
  table.rope_neox = rope_neox;
  table.scale = scale_by;
}

}  // namespace kbench
