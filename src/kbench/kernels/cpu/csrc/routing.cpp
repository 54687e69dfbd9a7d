#include "routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kbench {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Index of the greatest of n, the lowest one among equals; an entry that is taken or excluded is kNever. Falls back to
// the lowest entry where no comparison holds (all NaN), so that the result is an index in any case.
int64_t greatest(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

float group_score(const float* choice, int64_t n, bool sum_of_two) {
  float first = kNever, second = kNever;
  for (int64_t i = 0; i < n; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return sum_of_two && n > 1 ? first + second : first;
}

}  // namespace

void route(const float* logits, int64_t experts, const RouterOptions& o, float* work, int32_t* ids, float* weights) {
  float* score = work;
  float* choice = work + experts;
  float* group = work + 2 * experts;
  if (o.sigmoid) {
    for (int64_t e = 0; e < experts; ++e) score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
  } else {
    const float max = *std::max_element(logits, logits + experts);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += score[e] = std::exp(logits[e] - max);
    const float inverse = static_cast<float>(1.0 / sum);
    for (int64_t e = 0; e < experts; ++e) score[e] *= inverse;
  }
  for (int64_t e = 0; e < experts; ++e) choice[e] = score[e] + (o.bias.empty() ? 0.0f : o.bias[static_cast<size_t>(e)]);
  if (o.n_group > 1) {
    const int64_t size = experts / o.n_group;
    for (int64_t g = 0; g < o.n_group; ++g) group[g] = group_score(choice + g * size, size, !o.bias.empty());
    for (int64_t taken = 0; taken < o.topk_group; ++taken) group[greatest(group, o.n_group)] = kNever;
    for (int64_t g = 0; g < o.n_group; ++g) {
      if (group[g] != kNever) std::fill_n(choice + g * size, size, kNever);
    }
  }
  float sum = 0;
  for (int64_t i = 0; i < o.top_k; ++i) {
    const int64_t e = greatest(choice, experts);
    choice[e] = kNever;
    ids[i] = static_cast<int32_t>(e);
    weights[i] = score[e];
    sum += score[e];
  }
  // 1e-20 keeps a sum of zeros (all sigmoids underflown) finite, as the models' own code does.
  const float factor = (o.norm_topk_prob ? 1.0f / (sum + 1e-20f) : 1.0f) * o.routed_scaling;
  for (int64_t i = 0; i < o.top_k; ++i) weights[i] *= factor;
}

}  // namespace kbench
