// Choosing experts for a token.
#pragma once
#include <cstdint>

#include "program.h"

namespace kbench {

// logits[experts] -> the top_k expert ids, best first, and their weights. Scores are the softmax or the sigmoid of the
// logits; a bias moves the choice, not the weights. With groups, only experts of the topk_group best groups are
// eligible; a group's score is its best one, or with a bias the sum of its two best biased ones. Equal scores
// go to the lower index. Weights are renormalised to sum 1 where asked, then multiplied by routed_scaling.
// work: 2 * experts + n_group floats.
void route(const float* logits, int64_t experts, const RouterOptions& options, float* work, int32_t* ids,
           float* weights);

}  // namespace kbench
