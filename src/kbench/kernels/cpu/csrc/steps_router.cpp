// Choosing experts: a small linear layer, then the top k of every token.
#include <stdexcept>

#include "partition.h"
#include "program.h"
#include "routing.h"

namespace kbench {

int Program::moe_router(Isa isa, const PackedMatrix& w, int64_t x, int64_t ids, int64_t weights, RouterOptions o,
                        int threads) {
  threads = stage_threads(threads);
  const int64_t experts = w.n;
  if (o.top_k < 1 || o.top_k > experts) {
    throw std::invalid_argument("moe_router: top_k is " + std::to_string(o.top_k) + "; accepted: 1 to " +
                                std::to_string(experts));
  }
  if (o.n_group < 1 || experts % o.n_group != 0 || o.topk_group < 1 || o.topk_group > o.n_group ||
      experts / o.n_group * o.topk_group < o.top_k) {
    throw std::invalid_argument(
        "moe_router: n_group must divide the experts, topk_group be 1 to n_group, and the chosen "
        "groups hold top_k experts");
  }
  if (!o.bias.empty() && static_cast<int64_t>(o.bias.size()) != experts) {
    throw std::invalid_argument("moe_router: a bias of " + std::to_string(o.bias.size()) + " for " +
                                std::to_string(experts));
  }
  if (!o.logit_bias.empty() && static_cast<int64_t>(o.logit_bias.size()) != experts) {
    throw std::invalid_argument("moe_router: a bias of " + std::to_string(o.logit_bias.size()) + " logits for " +
                                std::to_string(experts));
  }
  place(x, max_tokens_, w.k, "x");
  const int64_t chosen_bytes = max_tokens_ * o.top_k * 4;
  place(ids, max_tokens_, o.top_k, "ids");
  place(weights, max_tokens_, o.top_k, "weights");
  if (overlap(arena_ + ids, chosen_bytes, arena_ + weights, chosen_bytes)) {
    throw std::invalid_argument("moe_router: ids and weights overlap");
  }
  begin_step();
  const ActivationRef ref = activation(isa, x, max_tokens_, w.k, {{w.format, parameters_}}, true, threads);
  Operand logits;
  logits.n_bytes = max_tokens_ * experts * 4;
  logits.shared = shared_scratch("router's logits", logits.n_bytes);
  add_matmul(isa, w, ref, logits, o.logit_bias, false, threads);
  const bool own = small(max_tokens_ * experts * o.top_k);
  const Operand id_out =
      own ? replicated_output(ids, max_tokens_, o.top_k, "ids") : shared_output(ids, max_tokens_, o.top_k, "ids");
  const Operand weight_out = own ? replicated_output(weights, max_tokens_, o.top_k, "weights")
                                 : shared_output(weights, max_tokens_, o.top_k, "weights");
  const int64_t work_floats = round_up(2 * experts + o.n_group, 32);
  float* work = reinterpret_cast<float*>(shared_scratch("router's work", work_floats * 4 * n_threads_));
  add_stage(
      [logits, id_out, weight_out, o, experts, work, work_floats, own](const Lane& lane, const RunState& s) {
        const Range rows = own ? Range{0, s.n_tokens} : share(s.n_tokens, lane.thread, lane.n_threads);
        for (int64_t t = rows.begin; t < rows.end; ++t) {
          route(logits.at(0) + t * experts, experts, o, work + lane.thread * work_floats,
                reinterpret_cast<int32_t*>(id_out.at(lane.thread)) + t * o.top_k,
                weight_out.at(lane.thread) + t * o.top_k);
        }
      },
      {reads(logits), writes(id_out), writes(weight_out)}, own ? 0 : threads);
  return n_steps_ - 1;
}

}  // namespace kbench
