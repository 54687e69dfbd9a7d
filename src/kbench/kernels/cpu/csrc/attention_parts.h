// Parts of attention over different positions, and how they become one output.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "aligned_buffer.h"
#include "op_table.h"

namespace kbench {

// Of at most `rows` query rows over some positions: [rows] maxima, [rows] sums, [rows][d_v] outputs.
struct Part {
  float* max;
  float* sum;
  float* out;
  static int64_t floats(int64_t rows, int64_t d_v) { return round_up(rows * (2 + d_v), 32); }
  Part(float* data, int64_t rows) : max(data), sum(data + rows), out(data + 2 * rows) {}

  // Nothing was seen yet.
  void clear(int64_t rows, int64_t d_v) const {
    std::fill_n(max, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, 0.0f);
    std::fill_n(out, rows * d_v, 0.0f);
  }
};

// What a sink, a score that brings no value with it, adds to the sum of a row's weights; nothing where there is none.
inline float sink_weight(const float* sink, float max) { return sink == nullptr ? 0.0f : std::exp(*sink - max); }

// to[n] = columns [column, column + n) of row i: the parts' outputs weighed by what they would be under one maximum.
// each_part(fn) calls fn(part) for every part of the row.
template <typename EachPart>
void merge_row(const OpTable& table, const EachPart& each_part, int64_t i, int64_t d_v, int64_t column, int64_t n,
               float* to, const float* sink = nullptr) {
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  each_part([&](const Part& part) { max = std::max(max, part.max[i]); });
  each_part([&](const Part& part) { sum += part.sum[i] * std::exp(part.max[i] - max); });
  sum += sink_weight(sink, max);
  bool first = true;
  each_part([&](const Part& part) {
    const float weight = std::exp(part.max[i] - max) / sum;
    const float* from = part.out + i * d_v + column;
    first ? table.scale(from, weight, n, to) : table.add_scaled(from, weight, n, to);
    first = false;
  });
}

}  // namespace kbench
