// Attention of few query rows, straight from the cache, see vector_attention.h:
//
//   scores [rows][unit] = q . k     dot products, a few rows times a few positions in registers
//   softmax                         along rows
//   out    [rows][d_v] += w . v     outer products
#pragma once

namespace kbench {
namespace {

// Positions at a time: their keys and values (d = 128, f16: 16 KiB) stay in the first-level cache for all rows.
constexpr int64_t kRowUnit = 32;

// Scores of kRows rows against kPositions positions, at most four, of which `n` exist.
template <CacheType kType, int kRows, int kPositions>
inline void dot_tile(const float* q, int64_t d, const uint8_t* keys, int64_t stride, int64_t n, float* scores) {
  const int64_t whole = d / kWidth * kWidth;
  const uint8_t* k[kPositions];
  KBENCH_UNROLL
  for (int p = 0; p < kPositions; ++p) k[p] = keys + (p < n ? p : n - 1) * stride;  // the last again, for nothing
  F acc[kRows][4];
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int p = 0; p < 4; ++p) acc[r][p] = V::zero();
  }
  for (int64_t i = 0; i < whole; i += kWidth) {
    F row[kRows];
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) row[r] = V::load(q + r * d + i);
    KBENCH_UNROLL
    for (int p = 0; p < kPositions; ++p) {
      const F key = load<kType>(k[p], i);
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r][p] = V::fma(row[r], key, acc[r][p]);
    }
  }
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    float sums[4];
    V::store_sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3], sums);
    for (int p = 0; p < kPositions; ++p) {
      for (int64_t i = whole; i < d; ++i) sums[p] += q[r * d + i] * load_one<kType>(k[p], i);
      scores[r * kRowUnit + p] = sums[p];
    }
  }
}

template <CacheType kType>
struct DotTiles {
  const AttentionBlock& b;
  int64_t begin, n;
  float* scores;
  template <int kRows>
  void call(int64_t row) const {
    // Sixteen registers hold 3 x 4 sums or 4 x 2.
    constexpr int kPositions = kRows <= 3 || kWidth > 8 ? 4 : 2;
    for (int64_t j = 0; j < n; j += kPositions) {
      dot_tile<kType, kRows, kPositions>(b.q + row * b.d_k, b.d_k, b.k + (begin + j) * b.k_stride, b.k_stride, n - j,
                                         scores + row * kRowUnit + j);
    }
  }
};

// Turns a row of scores into weights exp(score - maximum) and brings maximum, sum and output up to date.
inline void softmax_row(float* scores, int64_t n, float* row_max, float* row_sum, float* out, int64_t d_v) {
  constexpr int kVectors = static_cast<int>(kRowUnit / kWidth);
  const float infinity = __builtin_inff(), old_max = *row_max;
  for (int64_t j = n < 0 ? 0 : n; j < kRowUnit; ++j) scores[j] = -infinity;
  F v[kVectors];
  KBENCH_UNROLL
  for (int j = 0; j < kVectors; ++j) v[j] = V::load(scores + kWidth * j);
  F most = V::max(v[0], v[1]);
  KBENCH_UNROLL
  for (int j = 2; j < kVectors; ++j) most = V::max(most, v[j]);
  const float unit_max = V::max_lane(most);
  const float max = unit_max > old_max ? unit_max : old_max;
  if (max == -infinity) {  // nothing visible yet
    for (int64_t j = 0; j < kRowUnit; ++j) scores[j] = 0;
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

// out[kRows][kColumns vectors from element i] += weights . values of n positions.
template <CacheType kType, int kRows, int kColumns>
inline void weigh_tile(const float* w, const uint8_t* values, int64_t stride, int64_t n, float* out, int64_t d,
                       int64_t i) {
  F acc[kRows][kColumns];
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) acc[r][c] = V::load(out + r * d + i + c * kWidth);
  }
  for (int64_t j = 0; j < n; ++j) {
    const uint8_t* v = values + j * stride;
    // The smaller side stays in registers, the other one passes through.
    if constexpr (kRows < kColumns) {
      F weight[kRows];
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) weight[r] = V::broadcast(w[r * kRowUnit + j]);
      KBENCH_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        const F value = load<kType>(v, i + c * kWidth);
        KBENCH_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r][c] = V::fma(weight[r], value, acc[r][c]);
      }
    } else {
      F value[kColumns];
      KBENCH_UNROLL
      for (int c = 0; c < kColumns; ++c) value[c] = load<kType>(v, i + c * kWidth);
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F weight = V::broadcast(w[r * kRowUnit + j]);
        KBENCH_UNROLL
        for (int c = 0; c < kColumns; ++c) acc[r][c] = V::fma(weight, value[c], acc[r][c]);
      }
    }
  }
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) V::store(out + r * d + i + c * kWidth, acc[r][c]);
  }
}

template <CacheType kType>
struct WeighRows {
  const AttentionBlock& b;
  int64_t begin, n;
  const float* weights;
  template <int kRows>
  void call(int64_t row) const {
    // As many accumulators as a full tile has, so that few rows do not wait for one multiply-add after the other.
    constexpr int kColumns = kRows * 4 <= 2 * V::kRowTile ? 4 : 2;
    const uint8_t* v = b.v + begin * b.v_stride;
    const float* w = weights + row * kRowUnit;
    const int64_t d = b.d_v;
    float* out = b.out + row * d;
    int64_t i = 0;
    for (; i + kColumns * kWidth <= d; i += kColumns * kWidth) {
      weigh_tile<kType, kRows, kColumns>(w, v, b.v_stride, n, out, d, i);
    }
    for (; i + kWidth <= d; i += kWidth) weigh_tile<kType, kRows, 1>(w, v, b.v_stride, n, out, d, i);
    for (; i < d; ++i) {
      for (int r = 0; r < kRows; ++r) {
        float acc = out[r * d + i];
        for (int64_t j = 0; j < n; ++j) acc += w[r * kRowUnit + j] * load_one<kType>(v + j * b.v_stride, i);
        out[r * d + i] = acc;
      }
    }
  }
};

template <CacheType kType>
void attend_rows(const AttentionBlock& b) {
  float* scores = aligned(b.scratch);
  for (int64_t begin = b.begin; begin < b.end; begin += kRowUnit) {
    const int64_t n = b.end - begin < kRowUnit ? b.end - begin : kRowUnit;
    each_tile<4>(0, b.rows, DotTiles<kType>{b, begin, n, scores});
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t seen = b.visible[r] - begin;
      softmax_row(scores + r * kRowUnit, seen < n ? seen : n, b.max + r, b.sum + r, b.out + r * b.d_v, b.d_v);
    }
    each_tile<6>(0, b.rows, WeighRows<kType>{b, begin, n, scores});
  }
}

}  // namespace
}  // namespace kbench
