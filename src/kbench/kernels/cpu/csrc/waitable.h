// A number that threads wait on: they spin, then sleep until it changes.
//
//   value_    what is waited for
//   sleepers_ threads that sleep, or are about to; in the same cache line, so that who writes the value knows for free
//   epoch_    what they sleep on: counts the wake-ups, so that none between looking and sleeping is lost
#pragma once
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
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

// How long a waiting thread spins before it sleeps. Waking a sleeping thread costs 5 to 50 microseconds (futex,
// scheduler, a core leaving its sleep state). Threads with equal shares differ by less, and between two regions of one
// decode loop lie a few microseconds of Python and sampling. Spinning about as long as a wake-up costs is at most twice
// as bad as knowing the future. Longer would cost most where it helps least: a thread whose partner lost its processor
// to another process waits for milliseconds, and the time that it burns is taken from its own share. Giving the
// processor away with sched_yield() instead is worse: Linux takes a whole slice off the share of who yields.
constexpr std::chrono::microseconds kSpin{50};
// The clock is read once in so many pauses: reading it costs about as much as a pause.
constexpr int kPausesPerClockRead = 32;

class alignas(kCacheLine) Waitable {
 public:
  uint64_t load() const { return value_.load(std::memory_order_acquire); }

  // Where nobody waits.
  void reset(uint64_t value) { value_.store(value, std::memory_order_relaxed); }

  // Writes before it are seen by those whose wait() sees `value`. groups: those that are woken, see wait().
  void store(uint64_t value, uint32_t groups = kEveryone) {
    // Sequentially consistent with wait()'s "add to sleepers, read value": one of the two sees the other.
    value_.store(value, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake(groups);
  }

  // Returns the first value seen that `done` accepts. groups: a bit set; only a store() for one of them wakes.
  template <class Done>
  uint64_t wait(const Done& done, uint32_t groups = kEveryone) {
    // Most waits end within the first pauses, before the clock is worth a look.
    for (std::chrono::steady_clock::time_point deadline{};;) {
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        const uint64_t value = load();
        if (done(value)) return value;
        spin_pause();
      }
      const auto now = std::chrono::steady_clock::now();
      if (deadline == std::chrono::steady_clock::time_point{}) {
        deadline = now + kSpin;
      } else if (now >= deadline) {
        break;
      }
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t epoch = epoch_.load(std::memory_order_acquire);
      const uint64_t value = value_.load(std::memory_order_seq_cst);
      if (done(value)) {
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
        return value;
      }
      sleep(epoch, groups);
    }
  }

  static constexpr uint32_t kEveryone = UINT32_MAX;

 private:
#if defined(__linux__)
  void sleep(uint32_t epoch, uint32_t groups) {
    syscall(SYS_futex, &epoch_, FUTEX_WAIT_BITSET_PRIVATE, epoch, nullptr, nullptr, groups);
  }
  void wake(uint32_t groups) {
    epoch_.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &epoch_, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, nullptr, nullptr, groups);
  }
#else
  void sleep(uint32_t, uint32_t) { std::this_thread::yield(); }
  void wake(uint32_t) {}
#endif

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> epoch_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex is 32 bits");
};

}  // namespace kbench
