// Mixture of experts: all routed experts of a layer in one step.
//
//   plan      each thread for itself: pairs (token, choice) sorted by expert
//   gather    quantised rows copied next to each other, expert by expert (not for one token: all experts read its row)
//   gate, up  work = (expert, 32 columns) shared out by cost, or as `partition` says; biases, SiLU * up and its
//             quantisation by the thread that made it
//   down      work = output columns: each thread sums all experts' weighted results of its own columns, in the order of
//             the experts, so that no sums are shared and the result does not depend on the thread count
// Experts without tokens appear in no list and cost nothing; nor does a pair whose expert is on another device.
#include <stdexcept>

#include "expert_layer.h"
#include "ops.h"
#include "program.h"

namespace kbench {
namespace {

void check_experts(const std::vector<PackedMatrix>& w, size_t experts, int64_t n, int64_t k, const char* name) {
  if (w.size() != experts) {
    throw std::invalid_argument(std::string("moe_experts: ") + std::to_string(w.size()) + " matrices in " + name +
                                ", " + std::to_string(experts) + " in gate");
  }
  for (const PackedMatrix& m : w) {
    if (m.n != n || m.k != k || m.format != w[0].format) {
      throw std::invalid_argument(std::string("moe_experts: the matrices of ") + name +
                                  " differ in shape or format, or do "
                                  "not fit gate's: expected " +
                                  std::to_string(n) + " x " + std::to_string(k));
    }
  }
}

void check_bias(const std::vector<float>& bias, int64_t elements, const char* name) {
  if (bias.empty() || static_cast<int64_t>(bias.size()) == elements) return;
  throw std::invalid_argument(std::string("moe_experts: ") + std::to_string(bias.size()) + " biases of " + name +
                              "; accepted: one for each row of each expert, " + std::to_string(elements));
}

}  // namespace

int Program::moe_experts(Isa isa, std::vector<PackedMatrix> gate, std::vector<PackedMatrix> up,
                         std::vector<PackedMatrix> down, int64_t x, int64_t ids, int64_t weights, int64_t y,
                         int64_t top_k, ExpertOptions options, int threads) {
  threads = stage_threads(threads);
  if (gate.empty()) throw std::invalid_argument("moe_experts: no experts");
  const int64_t experts = static_cast<int64_t>(gate.size()), n = gate[0].n, k = gate[0].k;
  check_experts(gate, gate.size(), n, k, "gate");
  check_experts(up, gate.size(), n, k, "up");
  check_experts(down, gate.size(), k, n, "down");
  check_bias(options.gate_bias, experts * n, "gate");
  check_bias(options.up_bias, experts * n, "up");
  check_bias(options.down_bias, experts * k, "down");
  // More than there are experts where these are a part of a layer's: what lies elsewhere is left out.
  if (top_k < 1) {
    throw std::invalid_argument("moe_experts: top_k is " + std::to_string(top_k) + "; accepted: at least 1");
  }
  const int64_t max_pairs = max_tokens_ * top_k;
  const Operand in = value(x, max_tokens_, k, "x"), id_in = value(ids, max_tokens_, top_k, "ids");
  const Operand weight_in = value(weights, max_tokens_, top_k, "weights");
  for (const Operand& operand : {in, id_in, weight_in}) {
    if (overlap(operand.shared, operand.n_bytes, arena_ + y, in.n_bytes)) {
      throw std::invalid_argument("moe_experts: y overlaps an input");
    }
  }
  place(y, max_tokens_, k, "y");  // an error before anything is recorded
  begin_step();
  const bool quantise_x = quantised(gate[0].format) || quantised(up[0].format);
  const bool float_x = !quantised(gate[0].format) || !quantised(up[0].format);
  const bool one_token = max_tokens_ == 1;
  // Experts of few tokens read the form that line kernels read, those of many perhaps another one.
  MatmulParameters lines = parameters_;
  lines.panel_tokens = kManyTokens;
  std::vector<ActivationUse> uses;
  for (const Format format : {gate[0].format, up[0].format}) {
    uses.push_back({format, lines});
    uses.push_back({format, parameters_});
  }
  const ActivationRef ref = activation(isa, x, max_tokens_, k, uses, one_token, threads);

  auto layer = std::make_shared<ExpertLayer>(ExpertLayer{op_table(isa), matmul_table(isa), std::move(gate),
                                                         std::move(up), std::move(down), n, k, top_k, max_pairs,
                                                         std::move(options), planes_, parameters_, make_partition(threads),
                                                         make_partition(threads), one_token});
  layer->plans = reinterpret_cast<int32_t*>(
      shared_scratch("experts' plans", ExpertPlan::ints(experts, max_pairs) * 4 * threads));
  layer->own = reinterpret_cast<float*>(shared_scratch("experts' blocks", layer->own_floats() * 4 * threads));

  std::vector<Access> row_access;
  if (!one_token) {
    Activation& rows = layer->rows;
    const int64_t bytes = quantise_x ? activation_bytes(max_pairs, k, planes_) : 0,
                  float_bytes = float_x ? max_pairs * k * 4 : 0;
    uint8_t* data = shared_scratch("experts' rows", bytes + float_bytes);
    if (quantise_x) rows = activation_in(data, max_pairs, k, planes_);
    rows.k = rows.ldx = k;
    if (float_x) rows.x = reinterpret_cast<float*>(data + bytes);
    row_access.push_back({data, bytes + float_bytes, true, {}});
  }
  std::vector<Access> accesses = ref.accesses();
  accesses.push_back(reads(id_in));
  accesses.insert(accesses.end(), row_access.begin(), row_access.end());
  add_stage(
      [this, layer, ref, id_in](const Lane& lane, const RunState& s) {
        const bool good = layer->plan(lane.thread)
                              .make(reinterpret_cast<const int32_t*>(id_in.at(lane.thread)), s.n_tokens * layer->top_k,
                                    layer->experts());
        if (!good) bad_expert_.store(true);
        if (!layer->one_token) layer->gather(lane, ref.at(lane.thread), s.n_tokens);
      },
      accesses, threads);

  Activation& hidden = layer->hidden;
  const bool quantise_hidden = quantised(layer->down[0].format);
  const int64_t hidden_bytes = quantise_hidden ? activation_bytes(max_pairs, n, planes_) : max_pairs * n * 4;
  uint8_t* hidden_data = shared_scratch("experts' hidden", hidden_bytes);
  if (quantise_hidden) {
    hidden = activation_in(hidden_data, max_pairs, n, planes_);
  } else {
    hidden.x = reinterpret_cast<float*>(hidden_data);
    hidden.k = n;
  }
  hidden.ldx = n;
  for (Access& access : row_access) access.write = false;
  accesses = ref.accesses();
  accesses.insert(accesses.end(), row_access.begin(), row_access.end());
  accesses.push_back({hidden_data, hidden_bytes, true, {}});
  add_stage(
      [layer, ref](const Lane& lane, const RunState& s) {
        layer->gate_up(lane, s, layer->one_token ? ref.at(lane.thread) : layer->rows);
      },
      accesses, threads);

  const Operand out = shared_output(y, max_tokens_, k, "y");
  add_stage(
      [layer, weight_in, out](const Lane& lane, const RunState& s) {
        layer->sum_down(lane, s, weight_in.at(lane.thread), out.at(0));
      },
      {{hidden_data, hidden_bytes, false, {}}, reads(weight_in), writes(out)}, threads);
  return n_steps_ - 1;
}

}  // namespace kbench
