// Step 5, parallel: rows do not depend on each other, so every thread takes some. Two ways to hand them out:
//
//   static    each thread gets one contiguous part, decided beforehand. Nothing to agree on while running; but if one
//             thread is slowed down (another process, a weaker core), all wait for it.
//   dynamic   threads take a few rows at a time from a common counter until none are left. Nobody waits long; but the
//             counter's cache line travels between cores, and no thread has a long run of memory to itself.
#include <algorithm>
#include <atomic>

#include "blocked.h"
#include "share.h"
#include "steps.h"

namespace kbench::ladder {

// Rows that a thread takes at a time: a few tens of microseconds of work, a hundred times what the counter costs.
constexpr int64_t kDynamicRows = 4 * kBlockRows;

void parallel_static(const Linear& call, ThreadPool& pool) {
  const float* w = static_cast<const float*>(call.w);
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) { blocked_rows(call, w, begin, end); });
}

void parallel_dynamic(const Linear& call, ThreadPool& pool) {
  const float* w = static_cast<const float*>(call.w);
  std::atomic<int64_t> next{0};
  pool.run([&](int, int) {
    for (;;) {
      const int64_t begin = next.fetch_add(kDynamicRows, std::memory_order_relaxed);
      if (begin >= call.n) return;
      blocked_rows(call, w, begin, std::min(begin + kDynamicRows, call.n));
    }
  });
}

}  // namespace kbench::ladder
