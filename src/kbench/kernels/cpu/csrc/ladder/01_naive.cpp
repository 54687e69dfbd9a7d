// Step 1, naive: the loops in an order that is as right as any other on paper. Take one input after the other and add
// its share to every output.
//
// The innermost loop walks down a column of the weights. Neighbours in a column lie k floats apart in memory:
//
//   i = 0:   w00 .................. w10 .................. w20 ...       each step: another cache line, another page
//
// Of every 64-byte line that memory delivers, 4 bytes are used before it is thrown out again.
#include "steps.h"

namespace kbench::ladder {

void naive(const Linear& call, ThreadPool&) {
  const float* w = static_cast<const float*>(call.w);
  for (int64_t t = 0; t < call.tokens; ++t) {
    const float* x = call.x + t * call.k;
    float* y = call.y + t * call.n;
    for (int64_t row = 0; row < call.n; ++row) y[row] = 0.0f;
    for (int64_t i = 0; i < call.k; ++i) {
      for (int64_t row = 0; row < call.n; ++row) y[row] += w[row * call.k + i] * x[i];
    }
  }
}

}  // namespace kbench::ladder
