// Step 5's static division of work: a contiguous part of the rows for each thread.
#pragma once
#include <cstdint>

#include "../pool.h"

namespace kbench::ladder {

// Calls body(begin, end) on every thread of the pool with that thread's share of [0, n); shares differ by one at most.
template <class Body>
void share_rows(ThreadPool& pool, int64_t n, const Body& body) {
  pool.run([&](int thread, int n_threads) { body(n * thread / n_threads, n * (thread + 1) / n_threads); });
}

}  // namespace kbench::ladder
