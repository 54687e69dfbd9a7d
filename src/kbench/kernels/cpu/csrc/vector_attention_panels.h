// Attention of many query rows, see vector_attention.h. Everything is an outer product of float panels:
//
//   queries  [rows / W][d_k][W]         transposed once: a vector holds one element of W rows
//   keys     [d / kChunk][unit][kChunk] the cache's rows as floats, widened once per unit and block of rows; of latent
//                                       attention they are the values too
//   scores   [unit][rows]               += queries[i] * broadcast(keys[position][i])
//   softmax                             along columns: every lane is a row, nothing crosses lanes
//   out      [rows][d_v]                += broadcast(scores[position][row]) * values[position]
//
// A chunk of keys stays in the first-level cache while all rows pass over it; queries and output stream from the second.
#pragma once

namespace kbench {
namespace {

// Positions at a time: a multiple of both tiles (6 and 12).
constexpr int64_t kUnit = kAttentionPanelPositions;
constexpr int64_t kChunk = kAttentionChunk;
constexpr int64_t kPanelStride = kAttentionPanelStride;
constexpr int64_t kPanelFloats = kUnit * kPanelStride;
// Positions of a tile with one vector of rows: twelve sums wait for no multiply-add before them.
constexpr int kOneVectorTile = 12;
static_assert(kUnit % V::kRowTile == 0 && kUnit % kOneVectorTile == 0, "tiles come out even");
static_assert(kAttentionRows % kWidth == 0 && kChunk % kWidth == 0, "tiles come out even");

// fn.call<n>(first) for tiles of kTile, then for what is left.
template <int kTile, typename Fn>
inline void each_tile(int64_t first, int64_t count, const Fn& fn) {
  if constexpr (kTile > 0) {
    for (; first + kTile <= count; first += kTile) fn.template call<kTile>(first);
    if (first < count) each_tile<kTile - 1>(first, count, fn);
  }
}

inline float* aligned(float* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

// [rows][d] -> [rows / kWidth][d][kWidth]; lanes past the last row are zero.
inline void transpose_queries(const float* q, int64_t rows, int64_t d, float* out) {
  for (int64_t block = 0; block < rows; block += kWidth, out += d * kWidth) {
    const int64_t n = rows - block < kWidth ? rows - block : kWidth;
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t r = 0; r < n; ++r) out[i * kWidth + r] = q[(block + r) * d + i];
      for (int64_t r = n; r < kWidth; ++r) out[i * kWidth + r] = 0;
    }
  }
}

// panel[n][kPanelStride] = elements [first, first + width) of n rows of the cache.
template <CacheType kType>
void widen(const uint8_t* rows, int64_t stride, int64_t n, int64_t first, int64_t width, float* panel) {
  for (int64_t j = 0; j < n; ++j) widen_row<kType>(rows + j * stride, first, width, panel + j * kPanelStride);
}

// scores[kPositions][kVectors of rows] = or += queries . keys over `width` elements.
struct ScoreTile {
  const float* queries;  // [vector][d][kWidth], at the chunk's first element
  int64_t vector_stride;
  const float* keys;
  int64_t width;
  float* scores;
  bool first;
  template <int kPositions, int kVectors>
  void run(int64_t position) const {
    F acc[kPositions][kVectors];
    float* to = scores + position * kAttentionRows;
    KBENCH_UNROLL
    for (int p = 0; p < kPositions; ++p) {
      KBENCH_UNROLL
      for (int c = 0; c < kVectors; ++c) {
        acc[p][c] = first ? V::zero() : V::load(to + p * kAttentionRows + c * kWidth);
      }
    }
    const float* k = keys + position * kPanelStride;
    for (int64_t i = 0; i < width; ++i) {
      F q[kVectors];
      KBENCH_UNROLL
      for (int c = 0; c < kVectors; ++c) q[c] = V::load(queries + c * vector_stride + i * kWidth);
      KBENCH_UNROLL
      for (int p = 0; p < kPositions; ++p) {
        const F key = V::broadcast(k[p * kPanelStride + i]);
        KBENCH_UNROLL
        for (int c = 0; c < kVectors; ++c) acc[p][c] = V::fma(key, q[c], acc[p][c]);
      }
    }
    KBENCH_UNROLL
    for (int p = 0; p < kPositions; ++p) {
      KBENCH_UNROLL
      for (int c = 0; c < kVectors; ++c) V::store(to + p * kAttentionRows + c * kWidth, acc[p][c]);
    }
  }
};

// Scores of kWidth rows become weights; maxima and sums are brought up to date, and `shrink` is what their output is to
// be multiplied by. Row r sees of n positions those before seen[r] that come after -unseen[r]; `hidden`: the latter is
// to be looked at; `all` says that every row sees them all.
inline void softmax_columns(float* scores, int64_t n, const float* seen, const float* unseen, bool hidden, bool all,
                            float* row_max, float* row_sum, float* shrink) {
  const F limit = V::load(seen), start = V::load(unseen);
  F most[4] = {V::broadcast(-3.4e38f), V::broadcast(-3.4e38f), V::broadcast(-3.4e38f), V::broadcast(-3.4e38f)};
  for (int64_t j = 0; j < n; ++j) {
    F s = V::load(scores + j * kAttentionRows);
    if (!all) {
      s = V::below(static_cast<float>(j), limit, s, -__builtin_inff());
      if (hidden) s = V::below(-static_cast<float>(j), start, s, -__builtin_inff());
      V::store(scores + j * kAttentionRows, s);
    }
    most[j % 4] = V::max(s, most[j % 4]);  // in this order a NaN is passed over; the sum gets it
  }
  const F old_max = V::load(row_max);
  // Not below -3.4e38: where nothing was visible yet, the difference to the maximum must not be inf - inf.
  const F m = V::max(old_max, V::max(V::max(most[0], most[1]), V::max(most[2], most[3])));
  const F factor = V::exp_not_positive(V::sub(old_max, m));
  F total[2] = {V::mul(V::load(row_sum), factor), V::zero()};
  for (int64_t j = 0; j < n; ++j) {
    const F weight = V::exp_not_positive(V::sub(V::load(scores + j * kAttentionRows), m));
    total[j % 2] = V::add(total[j % 2], weight);
    V::store(scores + j * kAttentionRows, weight);
  }
  V::store(row_max, m);
  V::store(row_sum, V::add(total[0], total[1]));
  V::store(shrink, factor);
}

// out[kRows][kColumns vectors] += weights . values of n positions.
template <int kRows, int kColumns>
inline void weigh_panel(const float* weights, const float* values, int64_t n, float* out, int64_t stride) {
  F acc[kRows][kColumns];
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) acc[r][c] = V::load(out + r * stride + c * kWidth);
  }
  for (int64_t j = 0; j < n; ++j) {
    F value[kColumns];
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) value[c] = V::load(values + j * kPanelStride + c * kWidth);
    KBENCH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F weight = V::broadcast(weights[j * kAttentionRows + r]);
      KBENCH_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = V::fma(weight, value[c], acc[r][c]);
    }
  }
  KBENCH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KBENCH_UNROLL
    for (int c = 0; c < kColumns; ++c) V::store(out + r * stride + c * kWidth, acc[r][c]);
  }
}

// The first of the positions from `begin` on that row `row` sees, or a later row: an index.
inline int64_t first_index(const AttentionBlock& b, int64_t row, int64_t begin) {
  return b.low != nullptr && b.low[row] > begin ? b.low[row] - begin : 0;
}

// All columns of a chunk of values, for a tile of rows.
struct WeighTiles {
  const AttentionBlock& b;
  int64_t begin, n;
  const float* weights;
  const float* values;
  int64_t first, width;
  template <int kRows>
  void call(int64_t row) const {
    // The tile's last row sees the farthest, its first row the earliest.
    const int64_t seen = b.high[row + kRows - 1] - begin, from = first_index(b, row, begin);
    const int64_t count = (seen < n ? seen : n) - from;
    const float* w = weights + from * kAttentionRows + row;
    const float* v = values + from * kPanelStride;
    float* out = b.out + row * b.d_v + first;
    int64_t i = 0;
    for (; i + 2 * kWidth <= width; i += 2 * kWidth) weigh_panel<kRows, 2>(w, v + i, count, out + i, b.d_v);
    for (; i + kWidth <= width; i += kWidth) weigh_panel<kRows, 1>(w, v + i, count, out + i, b.d_v);
    for (; i < width; ++i) {
      for (int r = 0; r < kRows; ++r) {
        float acc = out[r * b.d_v + i];
        for (int64_t j = 0; j < count; ++j) acc += w[j * kAttentionRows + r] * v[j * kPanelStride + i];
        out[r * b.d_v + i] = acc;
      }
    }
  }
};

// The scratch of attend_panels; `rows` arrays are kAttentionRows long.
struct Panels {
  float *max, *sum, *seen, *unseen, *shrink, *scores, *keys, *values, *queries;
  Panels(const AttentionBlock& b) {
    max = aligned(b.scratch);
    sum = max + kAttentionRows;
    seen = sum + kAttentionRows;
    unseen = seen + kAttentionRows;
    shrink = unseen + kAttentionRows;
    scores = shrink + kAttentionRows;
    keys = scores + kUnit * kAttentionRows;
    values = keys + (b.d_k + kChunk - 1) / kChunk * kPanelFloats;
    queries = values + kPanelFloats;
  }
};

template <CacheType kType>
void score_unit(const AttentionBlock& b, int64_t begin, int64_t n, const Panels& p) {
  for (int64_t first = 0, chunk = 0; first < b.d_k; first += kChunk, ++chunk) {
    const int64_t width = b.d_k - first < kChunk ? b.d_k - first : kChunk;
    float* keys = p.keys + chunk * kPanelFloats;
    widen<kType>(b.k + begin * b.k_stride, b.k_stride, n, first, width, keys);
    for (int64_t row = 0; row < b.rows; row += 2 * kWidth) {
      const int64_t end = row + 2 * kWidth < b.rows ? row + 2 * kWidth : b.rows;
      const int64_t seen = b.high[end - 1] - begin, from = first_index(b, row, begin);
      const ScoreTile tile{p.queries + row * b.d_k + first * kWidth, b.d_k * kWidth, keys, width, p.scores + row,
                           first == 0};
      // Whole tiles only: a unit is a multiple of them, and scores outside of what is seen are not looked at.
      const int64_t count = seen < n ? seen : n;
      if (end - row > kWidth) {
        for (int64_t j = from / V::kRowTile * V::kRowTile; j < count; j += V::kRowTile) tile.run<V::kRowTile, 2>(j);
      } else {
        for (int64_t j = from / kOneVectorTile * kOneVectorTile; j < count; j += kOneVectorTile) {
          tile.run<kOneVectorTile, 1>(j);
        }
      }
    }
  }
}

inline void weigh_softmax(const AttentionBlock& b, int64_t begin, int64_t n, const Panels& p) {
  for (int64_t row = 0; row < b.rows; row += kWidth) {
    const int64_t end = row + kWidth < b.rows ? row + kWidth : b.rows;
    const int64_t most = b.high[end - 1] - begin, count = most < n ? most : n;
    const bool hidden = first_index(b, end - 1, begin) > 0;
    float* scores = p.scores + row;
    if (count > 0) {
      for (int64_t r = row; r < row + kWidth; ++r) {
        const int64_t last = r < end ? r : end - 1, seen = b.high[last] - begin, from = first_index(b, last, begin);
        p.seen[r] = static_cast<float>(seen < 0 ? 0 : seen < n ? seen : n);
        p.unseen[r] = static_cast<float>(1 - (from < n ? from : n));
      }
      softmax_columns(scores, count, p.seen + row, p.unseen + row, hidden, !hidden && b.high[row] - begin >= count,
                      p.max + row, p.sum + row, p.shrink + row);
      for (int64_t r = row; r < end; ++r) {
        const float factor = p.shrink[r];
        if (factor == 1) continue;
        float* out = b.out + r * b.d_v;
        int64_t i = 0;
        for (; i + kWidth <= b.d_v; i += kWidth) V::store(out + i, V::mul(V::load(out + i), V::broadcast(factor)));
        for (; i < b.d_v; ++i) out[i] *= factor;
      }
    }
    // A tile of rows that meets the next vector of rows may see more.
    for (int64_t j = count < 0 ? 0 : count; j < n; ++j) V::store(scores + j * kAttentionRows, V::zero());
  }
}

template <CacheType kType>
void attend_panels(const AttentionBlock& b) {
  const Panels p(b);
  transpose_queries(b.q, b.rows, b.d_k, p.queries);
  for (int64_t r = 0; r < kAttentionRows; ++r) {
    p.max[r] = r < b.rows ? b.max[r] : -__builtin_inff();
    p.sum[r] = r < b.rows ? b.sum[r] : 0;
  }
  for (int64_t begin = b.begin; begin < b.end; begin += kUnit) {
    const int64_t n = b.end - begin < kUnit ? b.end - begin : kUnit;
    score_unit<kType>(b, begin, n, p);
    weigh_softmax(b, begin, n, p);
    for (int64_t first = 0, chunk = 0; first < b.d_v; first += kChunk, ++chunk) {
      const int64_t width = b.d_v - first < kChunk ? b.d_v - first : kChunk;
      const float* values = p.keys + chunk * kPanelFloats;
      if (b.v != b.k) {
        widen<kType>(b.v + begin * b.v_stride, b.v_stride, n, first, width, p.values);
        values = p.values;
      }
      each_tile<V::kRowTile>(0, b.rows, WeighTiles{b, begin, n, p.scores, values, first, width});
    }
  }
  for (int64_t r = 0; r < b.rows; ++r) {
    b.max[r] = p.sum[r] == 0 ? -__builtin_inff() : p.max[r];
    b.sum[r] = p.sum[r];
  }
}

}  // namespace
}  // namespace kbench
