#include "hazards.h"

#include <algorithm>

namespace kbench {

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + static_cast<uintptr_t>(b_bytes) && y < x + static_cast<uintptr_t>(a_bytes);
}

namespace {

bool conflict(const Access& a, const Access& b) {
  if (!(a.write || b.write) || a.n_bytes == 0 || b.n_bytes == 0 || !overlap(a.begin, a.n_bytes, b.begin, b.n_bytes))
    return false;
  if (a.split.kind == Split::any || b.split.kind == Split::any) return true;
  // Equal splits of unequal pieces cut at other places. Thread 0 is thread 0 everywhere.
  const bool same_piece = a.begin == b.begin || a.split.kind == Split::first;
  return !(a.split == b.split && same_piece);
}

}  // namespace

bool Hazards::needs_barrier(const std::vector<Access>& accesses) {
  bool barrier = false;
  for (const Access& next : accesses) {
    barrier |= std::any_of(pending_.begin(), pending_.end(), [&](const Access& a) { return conflict(a, next); });
  }
  if (barrier) pending_.clear();
  pending_.insert(pending_.end(), accesses.begin(), accesses.end());
  return barrier;
}

Split Hazards::written(const void* begin, int64_t n_bytes) const {
  Split split;
  int n = 0;
  for (const Access& a : pending_) {
    if (!a.write || !overlap(a.begin, a.n_bytes, begin, n_bytes)) continue;
    split = a.begin == begin && a.n_bytes == n_bytes ? a.split : Split{};
    ++n;
  }
  return n == 1 ? split : Split{};
}

}  // namespace kbench
