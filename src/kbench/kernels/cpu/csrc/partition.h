// How the units of one stage (tiles of a matrix, blocks of experts) are shared out among its lanes.
//
//   fixed     lane t takes the t-th of equal, contiguous shares: the same for the same thread count, whatever the timing
//   dynamic   lanes take chunks from one counter until it runs out
//   stealing  lanes take chunks from the front of their own share, then from the end of the share with most left:
//
//     lane 0  |done....|next >        < stolen|        lane 1  |done................|
//
// Results do not depend on who makes a unit. The counters of dynamic and stealing carry the number of the run that they
// belong to: one of an earlier run stands for an untouched share, so that nobody has to reset them.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "waitable.h"

namespace kbench {

// A thread's place among those that share a stage.
struct Lane {
  int thread = 0;
  int n_threads = 1;
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
  int64_t size() const { return end - begin; }
};

// The share of part `index` of `parts`; shares differ by at most one.
inline Range share(int64_t n, int64_t index, int64_t parts) {
  return {n * index / parts, n * (index + 1) / parts};
}

class Partition {
 public:
  enum class Kind : int { fixed, dynamic, stealing };
  // Units that can be told apart in a lane's word; a stage with more is shared out as fixed.
  static constexpr int kUnitBits = 20;

  // For one stage of `threads` lanes.
  Partition(Kind kind, int threads);

  // One lane's way through a stage:  for (Range r; work.next(&r);) ...
  class Work {
   public:
    // The next units of this lane. False when none are left; others may still be at work on theirs.
    bool next(Range* range);

   private:
    friend class Partition;
    Work(Partition& partition, const Lane& lane, uint32_t run, int64_t n, int64_t least);
    bool take(int lane, bool own, Range* range);
    bool steal(Range* range);

    Partition& partition_;
    Lane lane_;
    int64_t n_;
    int64_t least_;
    uint64_t run_;
    bool fixed_;
    bool own_ = true;  // something may be left of the own share
  };

  // Called by each lane once in each run, also where `n` is 0. run: differs from that of the runs before. least: fewer
  // units at a time would cost more than they even out; the same for all lanes.
  Work work(const Lane& lane, uint32_t run, int64_t n, int64_t least = 1) { return {*this, lane, run, n, least}; }
  Kind kind() const { return kind_; }

 private:
  // The word of a lane (stealing): run << 40 | begin << 20 | end of what is left of its share. Of all lanes (dynamic):
  // run << 40 | first unit that is left.
  struct alignas(kCacheLine) Word {
    std::atomic<uint64_t> value{0};
  };

  Kind kind_;
  std::unique_ptr<Word[]> words_;
};

}  // namespace kbench
