// Step 3's inner product: 16 sums side by side. It is a header because later steps use it unchanged.
//
// With one sum, every addition waits for the one before (3 or 4 cycles), and since float addition is not associative
// the compiler may not split the sum by itself. 16 separate sums are 4 vectors of 4 floats: one addition can start in
// every cycle. More would be no faster, and GCC then keeps them in memory instead of registers.
#pragma once
#include <cstdint>

namespace kbench::ladder {

constexpr int64_t kSums = 16;

static inline float dot(const float* w, const float* x, int64_t k) {
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= k; i += kSums) {
    for (int64_t s = 0; s < kSums; ++s) sums[s] += w[i + s] * x[i + s];
  }
  float total = 0.0f;
  for (float sum : sums) total += sum;
  for (; i < k; ++i) total += w[i] * x[i];
  return total;
}

}  // namespace kbench::ladder
