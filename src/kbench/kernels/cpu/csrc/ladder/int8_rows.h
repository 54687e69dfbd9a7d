// Step 9's activations: rounded to int8 in blocks of 32, like the weights, with a float scale for each block.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "ladder.h"

namespace kbench::ladder {

class RoundedRows {
 public:
  explicit RoundedRows(const Linear& call)
      : q_(static_cast<size_t>(call.tokens * call.k)), scale_(static_cast<size_t>(call.tokens * call.k / kBlock)) {
    for (int64_t b = 0; b < call.tokens * call.k / kBlock; ++b) round_block(call.x + b * kBlock, b);
  }
  Int8Rows view() const { return {q_.data(), scale_.data()}; }

 private:
  void round_block(const float* x, int64_t b) {
    float largest = 0.0f;
    for (int64_t i = 0; i < kBlock; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    scale_[static_cast<size_t>(b)] = largest / 127.0f;
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (int64_t i = 0; i < kBlock; ++i) {
      q_[static_cast<size_t>(b * kBlock + i)] = static_cast<int8_t>(std::lrint(x[i] * inverse));
    }
  }

  std::vector<int8_t> q_;
  std::vector<float> scale_;
};

}  // namespace kbench::ladder
