// Attention over a stretch of the cache for any vector width, in units of kAttentionUnit positions:
//   scores[rows][unit] = q[rows][d_k] . k[unit][d_k]     few rows: dot products straight from the cache;
//                                                        many rows: outer products with K transposed once per unit
//   online softmax                                       maximum and sum per row, the output shrunk when they move
//   out[rows][d_v] += weights[rows][unit] . v[unit][d_v] outer products, V widened to float once per unit
//
// Included once by an ISA's file, which defines before it, in an anonymous namespace (nothing here may be merged
// between ISAs by the linker), `struct V`: the register type F, kWidth floats each, its operations, and kRowTile, the
// rows of a register tile with two vectors of columns.
#pragma once
#include "op_table.h"
#include "unroll.h"

namespace kbench {
namespace {

using F = V::F;
constexpr int kWidth = V::kWidth;
constexpr int64_t kUnit = kAttentionUnit;
// From so many rows on, transposing K pays: measured with AVX2, d = 64, as many rows of dot products take as long.
constexpr int64_t kRowsForPanels = 16;
// Rows of dot products at a time, times four positions: 12 accumulators, three q and one k fill 16 registers.
constexpr int kDotRows = 3;
static_assert(kAttentionRows % V::kRowTile == 0 && kUnit % (2 * kWidth) == 0, "tiles come out even");

template <bool kHalf>
inline const void* at(const void* data, int64_t index) {
  return kHalf ? static_cast<const void*>(static_cast<const uint16_t*>(data) + index)
               : static_cast<const void*>(static_cast<const float*>(data) + index);
}

template <bool kHalf>
inline F load(const void* data) {
  return kHalf ? V::load_half(static_cast<const uint16_t*>(data)) : V::load(static_cast<const float*>(data));
}

template <bool kHalf>
inline float load_one(const void* data) {
  return kHalf ? _cvtsh_ss(*static_cast<const uint16_t*>(data)) : *static_cast<const float*>(data);
}

// Scores of kRows rows against four positions at a time.
template <int kRows, bool kHalf>
void score_rows(const AttentionBlock& b, int64_t row, int64_t begin, int64_t n, float* scores) {
  const int64_t d = b.d_k, whole = d / kWidth * kWidth;
  const float* q0 = b.q + row * d;
  for (int64_t j = 0; j < n; j += 4) {
    const void* k[4];
    KBENCH_UNROLL
    for (int p = 0; p < 4; ++p) {
      const int64_t position = begin + (j + p < n ? j + p : n - 1);  // repeats the last one; its score is not used
      k[p] = at<kHalf>(b.k, position * b.k_stride);
    }
    F acc[kRows][4];
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KBENCH_UNROLL
      for (int p = 0; p < 4; ++p) acc[r][p] = V::zero();
    }
    for (int64_t i = 0; i < whole; i += kWidth) {
      F q[kRows];
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) q[r] = V::load(q0 + r * d + i);
      KBENCH_UNROLL
      for (int p = 0; p < 4; ++p) {
        const F kv = load<kHalf>(at<kHalf>(k[p], i));
        KBENCH_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r][p] = V::fma(q[r], kv, acc[r][p]);
      }
    }
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      __m128 sums = V::sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
      if (whole < d) {
        alignas(16) float tail[4] = {};
        for (int p = 0; p < 4; ++p) {
          for (int64_t i = whole; i < d; ++i) tail[p] += q0[r * d + i] * load_one<kHalf>(at<kHalf>(k[p], i));
        }
        sums = _mm_add_ps(sums, _mm_load_ps(tail));
      }
      _mm_store_ps(scores + (row + r) * kUnit + j, sums);
    }
  }
}

// panel[d_k][unit]: K of `n` positions transposed, 8 x 8 floats at a time; columns past n hold the last position.
template <bool kHalf>
void transpose_keys(const AttentionBlock& b, int64_t begin, int64_t n, float* panel) {
  const int64_t d = b.d_k, whole = d / 8 * 8;
  for (int64_t j = 0; j < kUnit; j += 8) {
    const void* k[8];
    for (int64_t p = 0; p < 8; ++p) k[p] = at<kHalf>(b.k, (begin + (j + p < n ? j + p : n - 1)) * b.k_stride);
    for (int64_t i = 0; i < whole; i += 8) {
      __m256 v[8], t[8], u[8];
      KBENCH_UNROLL
      for (int p = 0; p < 8; ++p) {
        const void* from = at<kHalf>(k[p], i);
        v[p] = kHalf ? _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)))
                     : _mm256_loadu_ps(static_cast<const float*>(from));
      }
      KBENCH_UNROLL
      for (int p = 0; p < 8; p += 2) {
        t[p] = _mm256_unpacklo_ps(v[p], v[p + 1]);
        t[p + 1] = _mm256_unpackhi_ps(v[p], v[p + 1]);
      }
      KBENCH_UNROLL
      for (int p = 0; p < 8; p += 4) {
        u[p] = _mm256_shuffle_ps(t[p], t[p + 2], 0x44);
        u[p + 1] = _mm256_shuffle_ps(t[p], t[p + 2], 0xee);
        u[p + 2] = _mm256_shuffle_ps(t[p + 1], t[p + 3], 0x44);
        u[p + 3] = _mm256_shuffle_ps(t[p + 1], t[p + 3], 0xee);
      }
      KBENCH_UNROLL
      for (int p = 0; p < 4; ++p) {
        _mm256_store_ps(panel + (i + p) * kUnit + j, _mm256_permute2f128_ps(u[p], u[p + 4], 0x20));
        _mm256_store_ps(panel + (i + p + 4) * kUnit + j, _mm256_permute2f128_ps(u[p], u[p + 4], 0x31));
      }
    }
    for (int64_t i = whole; i < d; ++i) {
      for (int p = 0; p < 8; ++p) panel[i * kUnit + j + p] = load_one<kHalf>(at<kHalf>(k[p], i));
    }
  }
}

template <int kRows>
void score_panel(const AttentionBlock& b, int64_t row, const float* panel, float* scores) {
  const int64_t d = b.d_k;
  const float* q0 = b.q + row * d;
  for (int64_t j = 0; j < kUnit; j += 2 * kWidth) {
    F acc[kRows][2];
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = V::zero();
    for (int64_t i = 0; i < d; ++i) {
      const F k0 = V::load(panel + i * kUnit + j), k1 = V::load(panel + i * kUnit + j + kWidth);
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F q = V::broadcast(q0[r * d + i]);
        acc[r][0] = V::fma(q, k0, acc[r][0]);
        acc[r][1] = V::fma(q, k1, acc[r][1]);
      }
    }
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      V::store(scores + (row + r) * kUnit + j, acc[r][0]);
      V::store(scores + (row + r) * kUnit + j + kWidth, acc[r][1]);
    }
  }
}

// Turns a row of scores into weights exp(score - maximum) and brings maximum, sum and output up to date.
inline void softmax_row(float* scores, int64_t n, float* row_max, float* row_sum, float* out, int64_t d_v) {
  constexpr int kVectors = static_cast<int>(kUnit / kWidth);
  const float infinity = __builtin_inff(), old_max = *row_max;
  for (int64_t j = n < 0 ? 0 : n; j < kUnit; ++j) scores[j] = -infinity;
  F v[kVectors];
  KBENCH_UNROLL
  for (int j = 0; j < kVectors; ++j) v[j] = V::load(scores + kWidth * j);
  F most = V::max(v[0], v[1]);
  KBENCH_UNROLL
  for (int j = 2; j < kVectors; ++j) most = V::max(most, v[j]);
  const float unit_max = V::max_lane(most);
  const float max = unit_max > old_max ? unit_max : old_max;
  if (max == -infinity) {  // nothing visible yet
    for (int64_t j = 0; j < kUnit; ++j) scores[j] = 0;
    return;
  }
  if (max > old_max) {
    const F shrink = V::exp_not_positive(V::broadcast(old_max - max));
    const float factor = V::first(shrink);
    *row_sum *= factor;
    *row_max = max;
    int64_t i = 0;
    for (; i + kWidth <= d_v; i += kWidth) V::store(out + i, V::mul(V::load(out + i), shrink));
    for (; i < d_v; ++i) out[i] *= factor;
  }
  const F m = V::broadcast(max);
  F total = V::zero();
  KBENCH_UNROLL
  for (int j = 0; j < kVectors; ++j) {
    const F weight = V::exp_not_positive(V::sub(v[j], m));
    total = V::add(total, weight);
    V::store(scores + kWidth * j, weight);
  }
  *row_sum += V::sum_lanes(total);
}

// out[kRows][kColumns vectors from column i] += weights . V of n positions.
template <int kRows, int kColumns, bool kHalf>
inline void weigh_tile(const float* w, const void* v, int64_t stride, int64_t n, float* out, int64_t d) {
  F acc[kRows][kColumns];
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) acc[r][c] = V::load(out + r * d + c * kWidth);
  }
  for (int64_t j = 0; j < n; ++j) {
    // The smaller side stays in registers, the other one passes through.
    if constexpr (kRows < kColumns) {
      F weight[kRows];
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) weight[r] = V::broadcast(w[r * kUnit + j]);
      KBENCH_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        const F value = load<kHalf>(at<kHalf>(v, j * stride + c * kWidth));
        KBENCH_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r][c] = V::fma(weight[r], value, acc[r][c]);
      }
    } else {
      F value[kColumns];
      KBENCH_UNROLL
      for (int c = 0; c < kColumns; ++c) value[c] = load<kHalf>(at<kHalf>(v, j * stride + c * kWidth));
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F weight = V::broadcast(w[r * kUnit + j]);
        KBENCH_UNROLL
        for (int c = 0; c < kColumns; ++c) acc[r][c] = V::fma(weight, value[c], acc[r][c]);
      }
    }
  }
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) V::store(out + r * d + c * kWidth, acc[r][c]);
  }
}

template <int kRows, bool kHalf>
void weigh_values(const AttentionBlock& b, int64_t row, const void* v, int64_t stride, int64_t n,
                  const float* weights) {
  // As many accumulators as a full tile has, so that few rows do not wait for one multiply-add after the other.
  constexpr int kColumns = kRows * 4 <= 2 * V::kRowTile ? 4 : 2;
  const float* w = weights + row * kUnit;
  const int64_t d = b.d_v;
  float* out = b.out + row * d;
  int64_t i = 0;
  for (; i + kColumns * kWidth <= d; i += kColumns * kWidth) {
    weigh_tile<kRows, kColumns, kHalf>(w, at<kHalf>(v, i), stride, n, out + i, d);
  }
  for (; i + kWidth <= d; i += kWidth) weigh_tile<kRows, 1, kHalf>(w, at<kHalf>(v, i), stride, n, out + i, d);
  for (; i < d; ++i) {
    for (int r = 0; r < kRows; ++r) {
      float acc = out[r * d + i];
      for (int64_t j = 0; j < n; ++j) acc += w[r * kUnit + j] * load_one<kHalf>(at<kHalf>(v, j * stride + i));
      out[r * d + i] = acc;
    }
  }
}

// fn<rows>(row) for tiles of kTile rows, then for what is left.
template <int kTile, typename Fn>
inline void each_row_tile(int64_t row, int64_t rows, const Fn& fn) {
  if constexpr (kTile > 0) {
    for (; row + kTile <= rows; row += kTile) fn.template call<kTile>(row);
    if (row < rows) each_row_tile<kTile - 1>(row, rows, fn);
  }
}

template <bool kHalf>
struct ScoreRows {
  const AttentionBlock& b;
  int64_t begin, n;
  float* scores;
  template <int kRows>
  void call(int64_t row) const {
    score_rows<kRows, kHalf>(b, row, begin, n, scores);
  }
};

struct ScorePanel {
  const AttentionBlock& b;
  const float* panel;
  float* scores;
  template <int kRows>
  void call(int64_t row) const {
    score_panel<kRows>(b, row, panel, scores);
  }
};

template <bool kHalf>
struct WeighValues {
  const AttentionBlock& b;
  const void* v;
  int64_t stride, n;
  const float* weights;
  template <int kRows>
  void call(int64_t row) const {
    weigh_values<kRows, kHalf>(b, row, v, stride, n, weights);
  }
};

void widen_values(const AttentionBlock& b, int64_t begin, int64_t n, float* panel) {
  for (int64_t j = 0; j < n; ++j) {
    const void* v = at<true>(b.v, (begin + j) * b.v_stride);
    int64_t i = 0;
    for (; i + kWidth <= b.d_v; i += kWidth) V::store(panel + j * b.d_v + i, load<true>(at<true>(v, i)));
    for (; i < b.d_v; ++i) panel[j * b.d_v + i] = load_one<true>(at<true>(v, i));
  }
}

inline float* aligned(float* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

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
      each_row_tile<V::kRowTile>(0, b.rows, ScorePanel{b, keys, scores});
    } else {
      each_row_tile<kDotRows>(0, b.rows, ScoreRows<kHalf>{b, begin, n, scores});
    }
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t seen = b.visible[r] - begin;
      softmax_row(scores + r * kUnit, seen < n ? seen : n, b.max + r, b.sum + r, b.out + r * b.d_v, b.d_v);
    }
    if (kHalf && panels) {
      widen_values(b, begin, n, values);
      each_row_tile<V::kRowTile>(0, b.rows, WeighValues<false>{b, values, b.d_v, n, scores});
    } else {
      const void* v = at<kHalf>(b.v, begin * b.v_stride);
      each_row_tile<V::kRowTile>(0, b.rows, WeighValues<kHalf>{b, v, b.v_stride, n, scores});
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
}  // namespace kbench
