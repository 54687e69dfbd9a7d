// Step 3, several sums: what bounds step 2 is no longer memory but the chain of additions into a single variable. See
// several_sums.h for the cure: independent sums, which the compiler then also turns into vector instructions.
#include "several_sums.h"
#include "steps.h"

namespace kbench::ladder {

void several_sums(const Linear& call, ThreadPool&) {
  const float* w = static_cast<const float*>(call.w);
  for (int64_t t = 0; t < call.tokens; ++t) {
    for (int64_t row = 0; row < call.n; ++row) {
      call.y[t * call.n + row] = dot(w + row * call.k, call.x + t * call.k, call.k);
    }
  }
}

}  // namespace kbench::ladder
