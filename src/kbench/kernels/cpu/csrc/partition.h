// Contiguous, static shares of a range of work: the same for the same thread count, whatever the timing.
#pragma once
#include <cstdint>

namespace kbench {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};

// The share of part `index` of `parts`; shares differ by at most one.
inline Range share(int64_t n, int64_t index, int64_t parts) {
  return {n * index / parts, n * (index + 1) / parts};
}

}  // namespace kbench
