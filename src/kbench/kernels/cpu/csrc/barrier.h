// A barrier for the threads of one parallel region, and the pause instruction that spinning needs.
//
//   arrived[t]  one cache line per thread: t writes the number of barriers it has reached
//   released    one cache line: thread 0 writes the number of barriers that everyone has reached
//
// Counting up instead of flipping a sense bit is the same thing with an error that shows in a debugger. No atomic
// read-modify-write: an arrival is one store, thread 0 gathers, a release is one store. With 2 threads that is two
// cache-line transfers, the least possible; with 64 the gathering loads overlap.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace kbench {

constexpr int kCacheLine = 64;

inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Pauses before a waiting thread starts to give its processor away. A pause takes 10 to 140 cycles, so this is 5 to
// 80 microseconds: longer than threads with equal shares ever differ, shorter than a scheduler's time slice, so that a
// thread whose partner lost its (virtual) processor does not burn the slice that the partner needs.
constexpr int kPausesBeforeYield = 2048;

class Barrier {
 public:
  explicit Barrier(int max_threads) : arrived_(new Flag[static_cast<size_t>(max_threads)]) {}

  // Called by each of the threads 0..n_threads-1 of a region; returns when all have called. Writes before it are seen
  // by reads after it on every thread. n_threads may differ between regions (see reset), not within one.
  void wait(int thread, int n_threads) {
    if (n_threads == 1) return;
    const uint32_t target = arrived_[thread].value.load(std::memory_order_relaxed) + 1;
    if (thread != 0) {
      arrived_[thread].value.store(target, std::memory_order_release);
      spin_until(released_, target);
      return;
    }
    for (int t = 1; t < n_threads; ++t) spin_until(arrived_[t], target);
    arrived_[0].value.store(target, std::memory_order_relaxed);
    released_.value.store(target, std::memory_order_release);
  }

  // Before a region, by one thread alone: lets a region use another number of threads than the last one.
  void reset(int n_threads) {
    for (int t = 0; t < n_threads; ++t) arrived_[t].value.store(0, std::memory_order_relaxed);
    released_.value.store(0, std::memory_order_relaxed);
  }

 private:
  struct alignas(kCacheLine) Flag {
    std::atomic<uint32_t> value{0};
  };

  static void spin_until(const Flag& flag, uint32_t target) {
    for (int pauses = 0; flag.value.load(std::memory_order_acquire) != target; ++pauses) {
      if (pauses < kPausesBeforeYield) {
        spin_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::unique_ptr<Flag[]> arrived_;
  Flag released_;
};

}  // namespace kbench
