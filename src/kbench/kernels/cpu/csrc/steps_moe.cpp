// Mixture of experts: the router, and all routed experts of a layer in one step.
//
//   plan      each thread for itself: pairs (token, choice) sorted by expert
//   gather    quantised rows copied next to each other, expert by expert (not for one token: all experts read its row)
//   gate, up  work = (expert, 32 columns) shared out by cost; SiLU * up and its quantisation by the thread that made it
//   down      work = output columns: each thread sums all experts' weighted results of its own columns, in the order of
//             the experts, so that no sums are shared and the result does not depend on the thread count
// Experts without tokens appear in no list and cost nothing.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops.h"
#include "partition.h"
#include "program.h"
#include "routing.h"

namespace kbench {
namespace {

// Columns of gate and up that are made, joined and quantised together: one quantisation block, two tiles.
constexpr int64_t kUnitColumns = 32;
// Temporary results are [kBlockTokens][kBlockColumns] floats: 16 KiB, two of which fit the first-level cache.
constexpr int64_t kBlockTokens = 32;
constexpr int64_t kBlockColumns = 128;
// An expert's weights cost as much to read and unpack as this many tokens cost to multiply.
constexpr int64_t kStreamTokens = 4;

// The pairs of one run, sorted by expert.
struct Plan {
  int32_t* begin;  // [experts + 1] first sorted pair of each expert
  int32_t* pair;   // [pairs] sorted place -> token * top_k + choice
  int32_t* next;   // [experts] work
  static int64_t ints(int64_t experts, int64_t pairs) { return round_up(2 * experts + 1 + pairs, 32); }
  Plan(int32_t* data, int64_t experts, int64_t pairs)
      : begin(data), pair(data + experts + 1), next(data + experts + 1 + pairs) {}

  // False when an id is out of range; such pairs are left out.
  bool make(const int32_t* ids, int64_t pairs, int64_t experts) {
    bool good = true;
    std::fill_n(begin, experts + 1, 0);
    for (int64_t i = 0; i < pairs; ++i) {
      if (ids[i] < 0 || ids[i] >= experts) {
        good = false;
      } else {
        ++begin[ids[i] + 1];
      }
    }
    for (int64_t e = 0; e < experts; ++e) {
      begin[e + 1] += begin[e];
      next[e] = begin[e];
    }
    for (int64_t i = 0; i < pairs; ++i) {
      if (ids[i] >= 0 && ids[i] < experts) pair[next[ids[i]]++] = static_cast<int32_t>(i);
    }
    return good;
  }
  int64_t count(int64_t expert) const { return begin[expert + 1] - begin[expert]; }
};

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

}  // namespace

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
  place(x, max_tokens_, w.k, "x");
  const int64_t chosen_bytes = max_tokens_ * o.top_k * 4;
  place(ids, max_tokens_, o.top_k, "ids");
  place(weights, max_tokens_, o.top_k, "weights");
  if (overlap(arena_ + ids, chosen_bytes, arena_ + weights, chosen_bytes)) {
    throw std::invalid_argument("moe_router: ids and weights overlap");
  }
  begin_step();
  const ActivationRef ref = activation(isa, x, max_tokens_, w.k, quantised(w.format), true, threads);
  Operand logits;
  logits.n_bytes = max_tokens_ * experts * 4;
  logits.shared = scratch(logits.n_bytes);
  add_matmul(isa, w, ref, logits, {}, false, threads);
  const bool own = small(max_tokens_ * experts * o.top_k);
  const Operand id_out =
      own ? replicated_output(ids, max_tokens_, o.top_k, "ids") : shared_output(ids, max_tokens_, o.top_k, "ids");
  const Operand weight_out = own ? replicated_output(weights, max_tokens_, o.top_k, "weights")
                                 : shared_output(weights, max_tokens_, o.top_k, "weights");
  const int64_t work_floats = round_up(2 * experts + o.n_group, 32);
  float* work = reinterpret_cast<float*>(scratch(work_floats * 4 * n_threads_));
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

int Program::moe_experts(Isa isa, std::vector<PackedMatrix> gate, std::vector<PackedMatrix> up,
                         std::vector<PackedMatrix> down, int64_t x, int64_t ids, int64_t weights, int64_t y,
                         int64_t top_k, int threads) {
  threads = stage_threads(threads);
  if (gate.empty()) throw std::invalid_argument("moe_experts: no experts");
  const int64_t experts = static_cast<int64_t>(gate.size()), n = gate[0].n, k = gate[0].k;
  check_experts(gate, gate.size(), n, k, "gate");
  check_experts(up, gate.size(), n, k, "up");
  check_experts(down, gate.size(), k, n, "down");
  if (top_k < 1 || top_k > experts) {
    throw std::invalid_argument("moe_experts: top_k is " + std::to_string(top_k) + "; accepted: 1 to " +
                                std::to_string(experts));
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
  const bool quantise_x = quantised(gate[0].format) || quantised(up[0].format), quantise_h = quantised(down[0].format);
  const bool float_x = !quantised(gate[0].format) || !quantised(up[0].format);
  const bool one_token = max_tokens_ == 1;
  const ActivationRef ref = activation(isa, x, max_tokens_, k, quantise_x, one_token, threads);
  const OpTable& ops = op_table(isa);
  const MatmulTable& table = matmul_table(isa);

  const int64_t plan_ints = Plan::ints(experts, max_pairs);
  int32_t* plans = reinterpret_cast<int32_t*>(scratch(plan_ints * 4 * threads));
  const auto plan_of = [=](int thread) { return Plan(plans + thread * plan_ints, experts, max_pairs); };

  // Rows in the order of the sorted pairs.
  Activation rows;
  rows.k = rows.ldx = k;
  std::vector<Access> row_access;
  if (!one_token) {
    const int64_t bytes = quantise_x ? activation_bytes(max_pairs, k, planes_) : 0,
                  float_bytes = float_x ? max_pairs * k * 4 : 0;
    uint8_t* data = scratch(bytes + float_bytes);
    if (quantise_x) rows = activation_in(data, max_pairs, k, planes_);
    rows.ldx = k;
    if (float_x) rows.x = reinterpret_cast<float*>(data + bytes);
    row_access.push_back({data, bytes + float_bytes, true, {}});
  }
  std::vector<Access> accesses = ref.accesses();
  accesses.push_back(reads(id_in));
  accesses.insert(accesses.end(), row_access.begin(), row_access.end());
  add_stage(
      [=](const Lane& lane, const RunState& s) {
        Plan plan = plan_of(lane.thread);
        const int64_t pairs = s.n_tokens * top_k;
        if (!plan.make(reinterpret_cast<const int32_t*>(id_in.at(lane.thread)), pairs, experts))
          bad_expert_.store(true);
        if (one_token) return;
        const Activation from = ref.at(lane.thread);
        const Range part = share(plan.begin[experts], lane.thread, lane.n_threads);
        for (int64_t p = part.begin; p < part.end; ++p) {
          const Activation a = rows_from(from, plan.pair[p] / top_k), b = rows_from(rows, p);
          if (quantise_x) {
            const auto planes = static_cast<size_t>(a.planes);
            std::memcpy(b.q, a.q, planes * static_cast<size_t>(k));
            std::memcpy(b.scale, a.scale, planes * static_cast<size_t>(k / 32) * 4);
            std::memcpy(b.sum, a.sum, planes * static_cast<size_t>(k / 16) * 4);
          }
          if (float_x) std::memcpy(const_cast<float*>(b.x), a.x, static_cast<size_t>(k) * 4);
        }
      },
      accesses, threads);

  // silu(gate) * up of each sorted pair: quantised, or float where down is.
  const int64_t h_bytes = quantise_h ? activation_bytes(max_pairs, n, planes_) : max_pairs * n * 4;
  uint8_t* h_data = scratch(h_bytes);
  Activation h;
  if (quantise_h) {
    h = activation_in(h_data, max_pairs, n, planes_);
  } else {
    h.x = reinterpret_cast<float*>(h_data);
    h.k = n;
  }
  h.ldx = n;
  const int64_t own_floats = 2 * kBlockTokens * kBlockColumns;
  float* own = reinterpret_cast<float*>(scratch(own_floats * 4 * threads));
  for (Access& access : row_access) access.write = false;
  accesses = ref.accesses();
  accesses.insert(accesses.end(), row_access.begin(), row_access.end());
  accesses.push_back({h_data, h_bytes, true, {}});
  add_stage(
      [=, &ops, &table, gate = std::move(gate), up = std::move(up)](const Lane& lane, const RunState&) {
        const Plan plan = plan_of(lane.thread);
        const Activation all_rows = one_token ? ref.at(lane.thread) : rows;
        // One token has one row: an expert that is chosen twice (logits of NaN do that) reads it twice.
        const int64_t most = one_token ? 1 : kBlockTokens;
        const int64_t units = (n + kUnitColumns - 1) / kUnitColumns;
        const auto unit_cost = [&](int64_t e) { return plan.count(e) > 0 ? plan.count(e) + kStreamTokens : 0; };
        int64_t total = 0;
        for (int64_t e = 0; e < experts; ++e) total += units * unit_cost(e);
        const Range share_cost = share(total, lane.thread, lane.n_threads);
        float* g = own + lane.thread * own_floats;
        float* u = g + kBlockTokens * kBlockColumns;
        int64_t first = 0;  // cost of all experts before e
        for (int64_t e = 0; e < experts && first < share_cost.end; ++e) {
          const int64_t cost = unit_cost(e), begin_cost = first;
          first += units * cost;
          if (cost == 0 || first <= share_cost.begin) continue;
          // Units whose first cost lies in the share: cut points fall between units, each unit in one share.
          const auto unit_at = [&](int64_t c) {
            return std::clamp<int64_t>((c - begin_cost + cost - 1) / cost, 0, units);
          };
          const int64_t c0 = unit_at(std::max(share_cost.begin, begin_cost)) * kUnitColumns;
          const int64_t c1 = std::min(unit_at(std::min(share_cost.end, first)) * kUnitColumns, n);
          const PackedMatrix &wg = gate[static_cast<size_t>(e)], &wu = up[static_cast<size_t>(e)];
          for (int64_t c = c0; c < c1; c += kBlockColumns) {
            const int64_t columns = std::min(kBlockColumns, c1 - c);
            const int64_t tile0 = c / kTileRows, tile1 = (c + columns + kTileRows - 1) / kTileRows;
            for (int64_t p = plan.begin[e]; p < plan.begin[e + 1]; p += most) {
              const int64_t tokens = std::min(most, plan.begin[e + 1] - p);
              const Activation a = rows_from(all_rows, one_token ? 0 : p);
              table.matmul[static_cast<int>(wg.format)](wg, a, tokens, tile0, tile1, nullptr, g - c, kBlockColumns);
              table.matmul[static_cast<int>(wu.format)](wu, a, tokens, tile0, tile1, nullptr, u - c, kBlockColumns);
              for (int64_t t = 0; t < tokens; ++t) {
                float* row = g + t * kBlockColumns;
                if (!quantise_h) {
                  ops.silu_mul(row, u + t * kBlockColumns, columns, const_cast<float*>(h.x) + (p + t) * n + c);
                  continue;
                }
                ops.silu_mul(row, u + t * kBlockColumns, columns, row);
                Activation piece = rows_from(h, p + t);
                piece.x = row;
                piece.k = piece.ldx = columns;
                piece.ldq = n;
                piece.q += c;
                piece.scale += c / 32;
                piece.sum += c / 16;
                table.quantize(piece, 0, 1);
              }
            }
          }
        }
      },
      accesses, threads);

  const Operand out = shared_output(y, max_tokens_, k, "y");
  add_stage(
      [=, &ops, &table, down = std::move(down)](const Lane& lane, const RunState& s) {
        const Plan plan = plan_of(lane.thread);
        const Range tiles = share((k + kTileRows - 1) / kTileRows, lane.thread, lane.n_threads);
        if (tiles.empty()) return;
        float* sums = out.at(0);
        float* temporary = own + lane.thread * own_floats;
        const float* pair_weight = weight_in.at(lane.thread);
        const int64_t first = tiles.begin * kTileRows, last = std::min(tiles.end * kTileRows, k);
        for (int64_t t = 0; t < s.n_tokens; ++t) std::fill(sums + t * k + first, sums + t * k + last, 0.0f);
        for (int64_t e = 0; e < experts; ++e) {
          const PackedMatrix& w = down[static_cast<size_t>(e)];
          for (int64_t c = first; c < last && plan.count(e) > 0; c += kBlockColumns) {
            const int64_t columns = std::min(kBlockColumns, last - c);
            const int64_t tile0 = c / kTileRows, tile1 = (c + columns + kTileRows - 1) / kTileRows;
            for (int64_t p = plan.begin[e]; p < plan.begin[e + 1]; p += kBlockTokens) {
              const int64_t tokens = std::min<int64_t>(kBlockTokens, plan.begin[e + 1] - p);
              table.matmul[static_cast<int>(w.format)](w, rows_from(h, p), tokens, tile0, tile1, nullptr, temporary - c,
                                                       kBlockColumns);
              for (int64_t t = 0; t < tokens; ++t) {
                const int64_t pair = plan.pair[p + t];
                ops.add_scaled(temporary + t * kBlockColumns, pair_weight[pair], columns, sums + pair / top_k * k + c);
              }
            }
          }
        }
      },
      {{h_data, h_bytes, false, {}}, reads(weight_in), writes(out)}, threads);
  return n_steps_ - 1;
}

}  // namespace kbench
