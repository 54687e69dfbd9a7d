// A barrier for the threads of one parallel region.
//
//   arrived[t]  one cache line per thread: t writes the number of barriers it has reached
//   released    one cache line: thread 0 writes the number of barriers that everyone has reached
//
// Counting up instead of flipping a sense bit is the same thing with an error that shows in a debugger. No atomic
// read-modify-write: an arrival is one store, thread 0 gathers, a release is one store. With 2 threads that is two
// cache-line transfers, the least possible; with 64 the gathering loads overlap.
#pragma once
#include <cstdint>
#include <memory>

#include "waitable.h"

namespace kbench {

class Barrier {
 public:
  explicit Barrier(int max_threads) : arrived_(new Waitable[static_cast<size_t>(max_threads)]) {}

  // Called by each of the threads 0..n_threads-1 of a region; returns when all have called. Writes before it are seen
  // by reads after it on every thread. n_threads may differ between regions (see reset), not within one.
  void wait(int thread, int n_threads) {
    if (n_threads == 1) return;
    const uint64_t target = arrived_[thread].load() + 1;
    const auto reached = [target](uint64_t count) { return count == target; };
    if (thread != 0) {
      arrived_[thread].store(target);
      released_.wait(reached);
      return;
    }
    for (int t = 1; t < n_threads; ++t) arrived_[t].wait(reached);
    arrived_[0].reset(target);
    released_.store(target);
  }

  // Before a region, by one thread alone: lets a region use another number of threads than the last one.
  void reset(int n_threads) {
    for (int t = 0; t < n_threads; ++t) arrived_[t].reset(0);
    released_.reset(0);
  }

 private:
  std::unique_ptr<Waitable[]> arrived_;
  Waitable released_;
};

}  // namespace kbench
