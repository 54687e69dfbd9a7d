// The routed experts of one layer, as the stages of a step run them.
#pragma once
#include <cstdint>
#include <vector>

#include "activation.h"
#include "expert_plan.h"
#include "matmul_table.h"
#include "op_table.h"
#include "program.h"

namespace kbench {

struct ExpertLayer {
  const OpTable& ops;
  const MatmulTable& table;
  std::vector<PackedMatrix> gate, up, down;
  int64_t n = 0;       // width of an expert
  int64_t k = 0;       // of the hidden state
  int64_t top_k = 0;
  int64_t max_pairs = 0;
  ExpertOptions options{};
  int planes = 1;
  MatmulParameters parameters{};
  std::shared_ptr<Partition> gate_up_partition, down_partition;
  bool one_token = false;    // the program's: all experts read the token's own row
  Activation rows{};         // inputs of the sorted pairs; unused for one token
  Activation hidden{};       // silu(gate) * up, or as options say, of the sorted pairs
  int32_t* plans = nullptr;  // [threads]
  float* own = nullptr;      // [threads][own_floats()]

  int64_t experts() const { return static_cast<int64_t>(gate.size()); }
  ExpertPlan plan(int thread) const;
  // A thread's results before they are joined or summed.
  int64_t own_floats() const;

  // Copies this lane's share of the sorted pairs from `x`, a row for each of the tokens, into `rows`.
  void gather(const Lane& lane, const Activation& x, int64_t tokens) const;
  // Makes this lane's share of `hidden` from `x`, a row for each sorted pair (or the only row, for one token).
  void gate_up(const Lane& lane, const RunState& s, const Activation& x) const;
  // y[tokens][k], this lane's columns: the sum of all experts' results times weights[tokens][top_k].
  void sum_down(const Lane& lane, const RunState& s, const float* weights, float* y) const;

 private:
  struct Block;
  KernelChoice kernel(const PackedMatrix& w, int64_t pairs, int64_t tokens) const;
  bool is_panel(const KernelChoice& choice, const PackedMatrix& w) const {
    return choice.fn != table.matmul[static_cast<int>(w.format)];
  }
  // Expert e's part of a bias of n each; null where there is none.
  static const float* of_expert(const std::vector<float>& bias, int64_t e, int64_t n) {
    return bias.empty() ? nullptr : bias.data() + e * n;
  }
  void activate(const float* g, const float* u, int64_t columns, float* y) const;
  void join(const float* g, float* u, int64_t pairs, int64_t stride, int64_t p, int64_t column, int64_t columns,
            bool words) const;
};

}  // namespace kbench
