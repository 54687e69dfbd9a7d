#include "partition.h"

#include <algorithm>
#include <utility>

namespace kbench {
namespace {

constexpr int kRunShift = 2 * Partition::kUnitBits;
constexpr uint64_t kUnitMask = (uint64_t{1} << Partition::kUnitBits) - 1;

uint64_t left(uint64_t run, int64_t begin, int64_t end) {
  return run << kRunShift | static_cast<uint64_t>(begin) << Partition::kUnitBits | static_cast<uint64_t>(end);
}

// What `word` says is left; all of `whole` where it is of an earlier run.
Range left_of(uint64_t word, uint64_t run, const Range& whole) {
  if (word >> kRunShift != run) return whole;
  return {static_cast<int64_t>(word >> Partition::kUnitBits & kUnitMask), static_cast<int64_t>(word & kUnitMask)};
}

}  // namespace

Partition::Partition(Kind kind, int threads)
    : kind_(threads > 1 ? kind : Kind::fixed),
      words_(kind_ == Kind::fixed ? nullptr : new Word[kind_ == Kind::dynamic ? 1 : static_cast<size_t>(threads)]) {}

Partition::Work::Work(Partition& partition, const Lane& lane, uint32_t run, int64_t n, int64_t least)
    : partition_(partition),
      lane_(lane),
      n_(n),
      least_(least),
      run_(run & (UINT64_MAX >> kRunShift)),
      fixed_(partition.kind_ == Kind::fixed || n > static_cast<int64_t>(kUnitMask)) {}

bool Partition::Work::next(Range* range) {
  if (fixed_) {
    *range = share(n_, lane_.thread, lane_.n_threads);
    return std::exchange(own_, false) && !range->empty();
  }
  if (partition_.kind_ == Kind::dynamic) {
    // The counter is a share of everything that all lanes own.
    return take(0, true, range);
  }
  if (own_ && take(lane_.thread, true, range)) return true;
  own_ = false;
  return steal(range);
}

// Half of what is left of the share of `lane`: of its front for itself, of its end for others. Chunks get smaller as
// the end comes near: few of them, and little to wait for behind the last ones.
bool Partition::Work::take(int lane, bool own, Range* range) {
  const bool all = partition_.kind_ == Kind::dynamic;
  const int64_t parts = all ? 2 * lane_.n_threads : 2;
  const Range whole = all ? Range{0, n_} : share(n_, lane, lane_.n_threads);
  // Relaxed: a word says who does what; what was done is passed on by the barrier behind the stage.
  std::atomic<uint64_t>& word = partition_.words_[lane].value;
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    const Range rest = left_of(seen, run_, whole);
    const int64_t half = (rest.size() + parts - 1) / parts;
    const int64_t size = std::min(std::max(half, least_), rest.size());
    *range = own ? Range{rest.begin, rest.begin + size} : Range{rest.end - size, rest.end};
    const Range kept = own ? Range{range->end, rest.end} : Range{rest.begin, range->begin};
    const uint64_t next = left(run_, kept.begin, kept.end);
    if (next == seen) return false;  // nothing left, and this run's word says so
    if (word.compare_exchange_weak(seen, next, std::memory_order_relaxed)) return size > 0;
  }
}

bool Partition::Work::steal(Range* range) {
  for (;;) {
    int victim = -1;
    int64_t most = 0;
    for (int lane = 0; lane < lane_.n_threads; ++lane) {
      const uint64_t word = partition_.words_[lane].value.load(std::memory_order_relaxed);
      const int64_t size = left_of(word, run_, share(n_, lane, lane_.n_threads)).size();
      if (size > most) {
        most = size;
        victim = lane;
      }
    }
    if (victim < 0) return false;
    if (take(victim, false, range)) return true;
  }
}

}  // namespace kbench
