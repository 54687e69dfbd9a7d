// The pairs (token, choice) of one run of a layer's experts, sorted by expert. Where a part of them is on another device
// a pair of theirs has the id kElsewhere, and is in no list.
#pragma once
#include <algorithm>
#include <cstdint>

#include "aligned_buffer.h"
#include "partition.h"

namespace kbench {

constexpr int32_t kElsewhere = -1;

// A view of ints(experts, pairs) numbers, made anew for every run.
struct ExpertPlan {
  int32_t* begin;   // [experts + 1] first sorted pair of each expert
  int32_t* pair;    // [pairs] sorted place -> token * top_k + choice
  int32_t* active;  // [experts] those with pairs, in order
  int32_t* n_active;

  static int64_t ints(int64_t experts, int64_t pairs) { return round_up(2 * experts + 2 + pairs, 32); }
  ExpertPlan(int32_t* data, int64_t experts, int64_t pairs)
      : begin(data), pair(begin + experts + 1), active(pair + pairs), n_active(active + experts) {}

  // False when an id is neither an expert nor kElsewhere; such pairs are left out, too.
  bool make(const int32_t* ids, int64_t pairs, int64_t experts) {
    bool good = true;
    std::fill_n(begin, experts + 1, 0);
    for (int64_t i = 0; i < pairs; ++i) {
      if (ids[i] >= 0 && ids[i] < experts) {
        ++begin[ids[i] + 1];
      } else if (ids[i] != kElsewhere) {
        good = false;
      }
    }
    int32_t* next = active;
    for (int64_t e = 0; e < experts; ++e) {
      begin[e + 1] += begin[e];
      next[e] = begin[e];
    }
    for (int64_t i = 0; i < pairs; ++i) {
      if (ids[i] >= 0 && ids[i] < experts) pair[next[ids[i]]++] = static_cast<int32_t>(i);
    }
    *n_active = 0;
    for (int64_t e = 0; e < experts; ++e) {
      if (count(e) > 0) active[(*n_active)++] = static_cast<int32_t>(e);
    }
    return good;
  }

  int64_t count(int64_t expert) const { return begin[expert + 1] - begin[expert]; }

  // fn(i, units) for a lane's share of `units` units of each active[i], which cost unit_cost(pairs of the expert) each.
  // Shares are runs of neighbouring units of equal cost, as nearly as whole units allow.
  template <class Cost, class Fn>
  void share_units(int64_t units, int64_t lane, int64_t lanes, Cost unit_cost, Fn fn) const {
    int64_t total = 0;
    for (int32_t i = 0; i < *n_active; ++i) total += units * unit_cost(count(active[i]));
    const Range part = share(total, lane, lanes);
    int64_t first = 0;  // cost of all experts before this one
    for (int32_t i = 0; i < *n_active && first < part.end; ++i) {
      const int64_t cost = unit_cost(count(active[i]));
      // Units that begin inside the part: each is in one share.
      const auto unit_at = [&](int64_t c) { return std::clamp<int64_t>((c - first + cost - 1) / cost, 0, units); };
      const Range mine{unit_at(part.begin), unit_at(part.end)};
      if (!mine.empty()) fn(i, mine);
      first += units * cost;
    }
  }
};

}  // namespace kbench
