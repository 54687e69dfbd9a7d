// A pair beside the ladder: which tokens of a vocabulary may be sampled? Only the few likeliest, so sort all logits, or
// only as far as needed?
//
//   full sort      all n logits in order: about n * log2(n) comparisons, 2.6 million for a vocabulary of 151936
//   partial sort   a heap of the best so far; nearly every logit is compared once with the worst of them and dropped
#include <algorithm>
#include <numeric>
#include <vector>

#include "steps.h"

namespace kbench::ladder {
namespace {

// Token ids, to be brought into the order of their logits: largest first, and of equals the lower id.
std::vector<int32_t> all_ids(const TopLogits& call) {
  std::vector<int32_t> ids(static_cast<size_t>(call.vocab));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

struct Likelier {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

void write_first(const TopLogits& call, const std::vector<int32_t>& ids) {
  for (int64_t i = 0; i < call.top_k; ++i) {
    call.ids[i] = ids[static_cast<size_t>(i)];
    call.values[i] = call.logits[call.ids[i]];
  }
}

}  // namespace

void full_sort(const TopLogits& call) {
  std::vector<int32_t> ids = all_ids(call);
  std::sort(ids.begin(), ids.end(), Likelier{call.logits});
  write_first(call, ids);
}

void partial_sort(const TopLogits& call) {
  std::vector<int32_t> ids = all_ids(call);
  std::partial_sort(ids.begin(), ids.begin() + call.top_k, ids.end(), Likelier{call.logits});
  write_first(call, ids);
}

}  // namespace kbench::ladder
