// Attention of few query rows, straight from the cache, see vector_attention.h:
//
//   scores [rows][unit] = q . k     dot products, a few rows times a few positions in registers
//   softmax                         along rows
//   out    [rows][d_v] += w . v     outer products
//
// q8_0 keys take their scale when they are read; values are left as whole numbers, and weights are multiplied by the
// scales instead, once for all elements of a block.
#pragma once

namespace kbench {
namespace {

// Positions at a time: their keys and values (d = 128, f16: 24 KiB) stay in the first-level cache for all rows.
constexpr int64_t kRowUnit = 48;

// Scores of kRows rows against kPositions positions, of which `n` exist.
template <CacheType kType, int kRows, int kPositions>
inline void dot_tile(const float* q, int64_t d, const uint8_t* keys, int64_t stride, int64_t n, float* scores) {
  constexpr int kSums = kRows * kPositions, kPadded = (kSums + 3) / 4 * 4;
  const int64_t whole = d / kWidth * kWidth;
  const uint8_t* k[kPositions];
  KBENCH_UNROLL
  for (int p = 0; p < kPositions; ++p) k[p] = keys + (p < n ? p : n - 1) * stride;  // the last again, for nothing
  F acc[kPadded];
  KBENCH_UNROLL
  for (F& sum : acc) sum = V::zero();
  const auto step = [&](int64_t i, const F* key) {
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F row = V::held(V::load(q + r * d + i));
      KBENCH_UNROLL
      for (int p = 0; p < kPositions; ++p) acc[r * kPositions + p] = V::fma(row, key[p], acc[r * kPositions + p]);
    }
  };
  if constexpr (kType == CacheType::q8_0) {
    for (int64_t i = 0; i < d; i += kCacheBlock) {
      F scale[kPositions];
      KBENCH_UNROLL
      for (int p = 0; p < kPositions; ++p) scale[p] = V::load_scale(k[p]);
      KBENCH_UNROLL
      for (int c = 0; c < kCacheBlock; c += kWidth) {
        F key[kPositions];
        KBENCH_UNROLL
        for (int p = 0; p < kPositions; ++p) key[p] = V::mul(scale[p], V::load_i8(k[p] + 2 + c));
        step(i + c, key);
      }
      KBENCH_UNROLL
      for (int p = 0; p < kPositions; ++p) k[p] += kCacheBlockBytes;
    }
  } else {
    for (int64_t i = 0; i < whole; i += kWidth) {
      F key[kPositions];
      KBENCH_UNROLL
      for (int p = 0; p < kPositions; ++p) key[p] = load<kType>(k[p], i);
      step(i, key);
    }
  }
  float sums[kPadded];
  KBENCH_UNROLL
  for (int s = 0; s < kSums; s += 4) V::store_sums(acc[s], acc[s + 1], acc[s + 2], acc[s + 3], sums + s);
  if (whole < d) {
    for (int s = 0; s < kSums; ++s) {
      const float* row = q + s / kPositions * d;
      for (int64_t i = whole; i < d; ++i) sums[s] += row[i] * load_one<kType>(k[s % kPositions], i);
    }
  }
  KBENCH_UNROLL
  for (int s = 0; s < kSums; ++s) scores[s / kPositions * kRowUnit + s % kPositions] = sums[s];
}

template <CacheType kType>
struct DotTiles {
  const AttentionBlock& b;
  int64_t begin, n;
  float* scores;
  template <int kRows>
  void call(int64_t row) const {
    // Sixteen registers hold twelve sums at most, a key or scale for each position, and a row.
    constexpr int kPositions = kRows == 1 ? 6 : kRows == 2 ? 4 : kRows == 4 && kType == CacheType::q8_0 ? 2 : 3;
    for (int64_t j = 0; j < n; j += kPositions) {
      dot_tile<kType, kRows, kPositions>(b.q + row * b.d_k, b.d_k, b.k + (begin + j) * b.k_stride, b.k_stride, n - j,
                                         scores + row * kRowUnit + j);
    }
  }
};

// Turns a row of scores, of which those in [first, n) count, into weights exp(score - maximum), and brings maximum, sum
// and output up to date.
inline void softmax_row(float* scores, int64_t first, int64_t n, float* row_max, float* row_sum, float* out,
                        int64_t d_v) {
  constexpr int kVectors = static_cast<int>(kRowUnit / kWidth);
  const float infinity = __builtin_inff(), old_max = *row_max;
  for (int64_t j = n < 0 ? 0 : n; j < kRowUnit; ++j) scores[j] = -infinity;
  for (int64_t j = 0; j < first && j < kRowUnit; ++j) scores[j] = -infinity;
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

// Elements of a row of values that weights meet: the numbers, or of q8_0 the whole numbers that scales are missing from.
template <CacheType kType>
inline F value_at(const uint8_t* row, int64_t i) {
  if constexpr (kType != CacheType::q8_0) return load<kType>(row, i);
  return V::load_i8(row + i / kCacheBlock * kCacheBlockBytes + 2 + i % kCacheBlock);
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
        const F value = value_at<kType>(v, i + c * kWidth);
        KBENCH_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r][c] = V::fma(weight[r], value, acc[r][c]);
      }
    } else {
      F value[kColumns];
      KBENCH_UNROLL
      for (int c = 0; c < kColumns; ++c) value[c] = value_at<kType>(v, i + c * kWidth);
      KBENCH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F weight = V::held(V::broadcast(w[r * kRowUnit + j]));
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
  int64_t block_stride;  // floats from the weights for one q8_0 block to those for the next
  template <int kRows>
  void call(int64_t row) const {
    const uint8_t* v = b.v + begin * b.v_stride;
    const float* w = weights + row * kRowUnit;
    const int64_t d = b.d_v, stride = b.v_stride;
    float* out = b.out + row * d;
    int64_t i = 0;
    if constexpr (kType == CacheType::q8_0) {
      constexpr int kColumns = kRows <= 2 && kWidth <= 8 ? 4 : 2;
      for (; i < d; i += kColumns * kWidth) {
        weigh_tile<kType, kRows, kColumns>(w + i / kCacheBlock * block_stride, v, stride, n, out, d, i);
      }
      return;
    }
    // Eight sums or more, so that none waits for the multiply-add before it; twelve fit sixteen registers.
    constexpr int kColumns = kRows <= 3 ? 4 : kRows == 4 ? 3 : 2;
    // Four columns left are better taken as two and two than as three and one.
    for (; i + kColumns * kWidth <= d && (kColumns != 3 || i + 4 * kWidth != d); i += kColumns * kWidth) {
      weigh_tile<kType, kRows, kColumns>(w, v, stride, n, out, d, i);
    }
    for (; i + 2 * kWidth <= d; i += 2 * kWidth) weigh_tile<kType, kRows, 2>(w, v, stride, n, out, d, i);
    for (; i + kWidth <= d; i += kWidth) weigh_tile<kType, kRows, 1>(w, v, stride, n, out, d, i);
    for (; i < d; ++i) {
      for (int r = 0; r < kRows; ++r) {
        float acc = out[r * d + i];
        for (int64_t j = 0; j < n; ++j) acc += w[r * kRowUnit + j] * load_one<kType>(v + j * stride, i);
        out[r * d + i] = acc;
      }
    }
  }
};

// scaled[block][rows][unit] = weights * the scale of each position's block.
inline void scale_weights(const AttentionBlock& b, int64_t begin, int64_t n, const float* weights, float* scaled) {
  alignas(64) float scales[kRowUnit] = {};
  const uint8_t* values = b.v + begin * b.v_stride;
  for (int64_t block = 0; block < b.d_v / kCacheBlock; ++block) {
    for (int64_t j = 0; j < n; ++j) scales[j] = V::half(values + j * b.v_stride + block * kCacheBlockBytes);
    for (int64_t r = 0; r < b.rows; ++r, scaled += kRowUnit) {
      KBENCH_UNROLL
      for (int64_t j = 0; j < kRowUnit; j += kWidth) {
        V::store(scaled + j, V::mul(V::load(scales + j), V::load(weights + r * kRowUnit + j)));
      }
    }
  }
}

template <CacheType kType>
void attend_rows(const AttentionBlock& b) {
  float* scores = aligned(b.scratch);
  float* scaled = scores + b.rows * kRowUnit;
  for (int64_t begin = b.begin; begin < b.end; begin += kRowUnit) {
    const int64_t n = b.end - begin < kRowUnit ? b.end - begin : kRowUnit;
    each_tile<4>(0, b.rows, DotTiles<kType>{b, begin, n, scores});
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t seen = b.high[r] - begin;
      softmax_row(scores + r * kRowUnit, first_index(b, r, begin), seen < n ? seen : n, b.max + r, b.sum + r,
                  b.out + r * b.d_v, b.d_v);
    }
    if (kType == CacheType::q8_0) scale_weights(b, begin, n, scores, scaled);
    const float* weights = kType == CacheType::q8_0 ? scaled : scores;
    each_tile<6>(0, b.rows, WeighRows<kType>{b, begin, n, weights, b.rows * kRowUnit});
  }
}

}  // namespace
}  // namespace kbench
