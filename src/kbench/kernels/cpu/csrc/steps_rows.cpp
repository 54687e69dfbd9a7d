// The steps that work row by row: embedding, norm, SiLU * up, residual, last row, RoPE.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "ops.h"
#include "partition.h"
#include "program.h"

namespace kbench {
namespace {

// Sums that do not wait for each other, so that the compiler makes vectors of them.
constexpr int64_t kLanes = 16;

}  // namespace

int Program::embedding(Isa isa, const PackedMatrix& w, int64_t y, int threads) {
  (void)isa;  // a row is unpacked once per token: not worth a version per ISA
  threads = stage_threads(threads);
  const Operand out =
      small(max_tokens_ * w.k) ? replicated_output(y, max_tokens_, w.k, "y") : shared_output(y, max_tokens_, w.k, "y");
  begin_step();
  checks_.push_back([n = w.n](const RunState& s) {
    for (int64_t t = 0; t < s.n_tokens; ++t) {
      if (s.tokens[t] < 0 || s.tokens[t] >= n) {
        throw std::invalid_argument("token id " + std::to_string(s.tokens[t]) + "; the embedding has rows 0 to " +
                                    std::to_string(n - 1));
      }
    }
  });
  add_rows({}, out, w.k * 4, false, threads, [w, out](int thread, int64_t begin, int64_t end, const RunState& s) {
    for (int64_t t = begin; t < end; ++t) unpack_row(w, s.tokens[t], out.at(thread) + t * w.k);
  });
  return n_steps_ - 1;
}

int Program::rms_norm(Isa isa, int64_t x, std::vector<float> weight, int64_t d, int64_t rows, float eps, int64_t y,
                      bool one_row, int64_t row_width, int threads) {
  threads = stage_threads(threads);
  if (row_width == 0) row_width = d;
  if (d < 1 || row_width < d || rows < 1 || rows > arena_bytes_ / 4 / row_width)
    throw std::invalid_argument("rms_norm: d and rows do not fit the arena");
  if (static_cast<int64_t>(weight.size()) != d) {
    throw std::invalid_argument("rms_norm: " + std::to_string(weight.size()) + " weights for d = " + std::to_string(d));
  }
  const int64_t n = one_row ? 1 : max_tokens_, width = rows * row_width;
  const Operand in = value(x, n, width, "x");
  const Operand out = output(y, n, width, "y");
  begin_step();
  add_rows({in}, out, width * 4, one_row, threads,
           [&table = op_table(isa), weight = std::move(weight), in, out, d, rows, row_width, eps](
               int thread, int64_t begin, int64_t end, const RunState&) {
             for (int64_t r = begin * rows; r < end * rows; ++r) {
               const float* from = in.at(thread) + r * row_width;
               float* to = out.at(thread) + r * row_width;
               table.rms_norm(from, weight.data(), d, eps, to);
               if (from != to) std::memcpy(to + d, from + d, static_cast<size_t>(row_width - d) * 4);
             }
           });
  return n_steps_ - 1;
}

int Program::silu_mul(Isa isa, int64_t gate, int64_t up, int64_t y, int64_t n, int threads) {
  threads = stage_threads(threads);
  const Operand g = value(gate, max_tokens_, n, "gate"), u = value(up, max_tokens_, n, "up");
  const OpTable& table = op_table(isa);
  // Each thread takes the columns that its own tiles of gate and up made: no barrier before, and none of the
  // exponentials twice.
  // A replicated value is not what was written there.
  const Split made = g.replicated() || u.replicated() ? Split{} : hazards_.written(g.shared, g.n_bytes);
  const bool in_place_apart = (y == gate || !overlap(g.shared, g.n_bytes, arena_ + y, g.n_bytes)) &&
                              (y == up || !overlap(u.shared, u.n_bytes, arena_ + y, u.n_bytes));
  if (made.kind == Split::columns && made == hazards_.written(u.shared, u.n_bytes) && made.threads == threads &&
      made.width == n && in_place_apart) {
    const Operand out = shared_output(y, max_tokens_, n, "y");
    begin_step();
    add_stage(
        [&table, g, u, out, n](const Lane& lane, const RunState& s) {
          const Range tiles = share((n + kTileRows - 1) / kTileRows, lane.thread, lane.n_threads);
          const int64_t begin = tiles.begin * kTileRows, end = std::min(n, tiles.end * kTileRows);
          for (int64_t t = 0; t < s.n_tokens && begin < end; ++t) {
            const int64_t at = t * n + begin;
            table.silu_mul(g.at(0) + at, u.at(0) + at, end - begin, out.at(0) + at);
          }
        },
        {reads(g, made), reads(u, made), writes(out, made)}, threads);
    return n_steps_ - 1;
  }
  const Operand out = output(y, max_tokens_, n, "y");
  begin_step();
  add_rows({g, u}, out, n * 4, false, threads,
           [&table, g, u, out, n](int thread, int64_t begin, int64_t end, const RunState&) {
             table.silu_mul(g.at(thread) + begin * n, u.at(thread) + begin * n, (end - begin) * n,
                            out.at(thread) + begin * n);
           });
  return n_steps_ - 1;
}

int Program::add(Isa isa, int64_t a, int64_t b, int64_t y, int64_t d, int threads) {
  threads = stage_threads(threads);
  const Operand left = value(a, max_tokens_, d, "a"), right = value(b, max_tokens_, d, "b");
  const Operand out = output(y, max_tokens_, d, "y");
  begin_step();
  add_rows({left, right}, out, d * 4, false, threads,
           [&table = op_table(isa), left, right, out, d](int thread, int64_t begin, int64_t end, const RunState&) {
             table.add(left.at(thread) + begin * d, right.at(thread) + begin * d, (end - begin) * d,
                       out.at(thread) + begin * d);
           });
  return n_steps_ - 1;
}

int Program::gated_add(Isa isa, int64_t a, int64_t b, int64_t h, std::vector<float> weight, int64_t y, int64_t d,
                       int threads) {
  threads = stage_threads(threads);
  if (static_cast<int64_t>(weight.size()) != d) {
    throw std::invalid_argument("gated_add: " + std::to_string(weight.size()) +
                                " weights for d = " + std::to_string(d));
  }
  const Operand left = value(a, max_tokens_, d, "a"), right = value(b, max_tokens_, d, "b"),
                hidden = value(h, max_tokens_, d, "h");
  for (const Operand& in : {right, hidden}) {  // both are read after y is written
    if (overlap(in.shared, in.n_bytes, arena_ + y, in.n_bytes)) {
      throw std::invalid_argument("gated_add: y overlaps b or h");
    }
  }
  const Operand out = output(y, max_tokens_, d, "y");
  begin_step();
  add_rows({left, right, hidden}, out, d * 4, false, threads,
           [&table = op_table(isa), left, right, hidden, out, d, weight = std::move(weight)](
               int thread, int64_t begin, int64_t end, const RunState&) {
             for (int64_t t = begin; t < end; ++t) {
               const float* row = hidden.at(thread) + t * d;
               float sums[kLanes] = {};
               for (int64_t i = 0; i + kLanes <= d; i += kLanes) {
                 for (int64_t l = 0; l < kLanes; ++l) sums[l] += row[i + l] * weight[static_cast<size_t>(i + l)];
               }
               for (int64_t i = d / kLanes * kLanes; i < d; ++i) sums[0] += row[i] * weight[static_cast<size_t>(i)];
               double dot = 0;
               for (const float sum : sums) dot += static_cast<double>(sum);
               const float gate = static_cast<float>(1.0 / (1.0 + std::exp(-dot)));
               std::memmove(out.at(thread) + t * d, left.at(thread) + t * d, static_cast<size_t>(d) * 4);
               table.add_scaled(right.at(thread) + t * d, gate, d, out.at(thread) + t * d);
             }
           });
  return n_steps_ - 1;
}

int Program::take_last(Isa isa, int64_t x, int64_t y, int64_t d, int threads) {
  (void)isa;
  threads = stage_threads(threads);
  const Operand in = value(x, max_tokens_, d, "x");
  const Operand out = output(y, 1, d, "y");
  begin_step();
  const auto copy = [in, out, d](const Lane& lane, const RunState& s) {
    std::memmove(out.at(lane.thread), in.at(lane.thread) + (s.n_tokens - 1) * d, static_cast<size_t>(d) * 4);
  };
  add_stage(copy, {reads(in), writes(out, {Split::first, 0, 0})}, out.replicated() ? 0 : 1);
  return n_steps_ - 1;
}

const Program::RopeTable& Program::rope_table(std::vector<float> inv_freq, float attn_factor, bool own, int threads) {
  for (const auto& table : rope_tables_) {
    if (table->own == own && table->attn_factor == attn_factor && table->inv_freq == inv_freq) return *table;
  }
  auto table = std::make_unique<RopeTable>();
  table->inv_freq = std::move(inv_freq);
  table->attn_factor = attn_factor;
  table->own = own;
  const int64_t half = static_cast<int64_t>(table->inv_freq.size());
  table->floats_per_thread = own ? round_up(2 * max_tokens_ * half, 32) : 0;
  const int64_t bytes = 4 * (own ? table->floats_per_thread * n_threads_ : 2 * max_tokens_ * half);
  table->cosine = reinterpret_cast<float*>(scratch(bytes));
  rope_tables_.push_back(std::move(table));
  RopeTable* t = rope_tables_.back().get();
  const auto fill = [t, half, n = max_tokens_](int thread, int64_t begin, int64_t end, const RunState& s) {
    float* cosine = t->cosine + thread * t->floats_per_thread;
    float* sine = cosine + n * half;
    for (int64_t i = 0; i < s.n_spans; ++i) {
      const Span& span = s.spans[i];
      for (int64_t row = std::max(begin, span.row); row < std::min(end, span.row + span.n); ++row) {
        const double position = static_cast<double>(span.position + row - span.row);
        for (int64_t j = 0; j < half; ++j) {
          // In double: at position 100,000 a float angle would be off by up to 0.004.
          const double angle = position * static_cast<double>(t->inv_freq[static_cast<size_t>(j)]);
          cosine[row * half + j] = static_cast<float>(std::cos(angle) * t->attn_factor);
          sine[row * half + j] = static_cast<float>(std::sin(angle) * t->attn_factor);
        }
      }
    }
  };
  if (own) {
    add_stage([fill](const Lane& lane, const RunState& s) { fill(lane.thread, 0, s.n_tokens, s); }, {}, 0);
  } else {
    add_stage(
        [fill](const Lane& lane, const RunState& s) {
          const Range rows = share(s.n_tokens, lane.thread, lane.n_threads);
          fill(0, rows.begin, rows.end, s);
        },
        {{t->cosine, bytes, true, {}}}, threads);
  }
  return *t;
}

int Program::rope(Isa isa, int64_t x, int64_t y, int64_t heads, int64_t head_dim, int64_t d, bool neox,
                  std::vector<float> inv_freq, float attn_factor, bool first, int threads) {
  threads = stage_threads(threads);
  if (heads < 1 || head_dim < 1 || d < 2 || d % 2 != 0 || d > head_dim || heads > arena_bytes_ / 4 / head_dim) {
    throw std::invalid_argument("rope: d is " + std::to_string(d) + " of head_dim " + std::to_string(head_dim) +
                                "; accepted: even, 2 to head_dim, and heads that fit the arena");
  }
  if (static_cast<int64_t>(inv_freq.size()) != d / 2) {
    throw std::invalid_argument("rope: " + std::to_string(inv_freq.size()) +
                                " frequencies; accepted: d/2 = " + std::to_string(d / 2));
  }
  const int64_t width = heads * head_dim;
  const Operand in = value(x, max_tokens_, width, "x");
  if (x != y && overlap(in.shared, in.n_bytes, arena_ + y, in.n_bytes)) {
    throw std::invalid_argument("rope: x and y overlap in part; accepted: the same value or two apart");
  }
  const Operand out = output(y, max_tokens_, width, "y");
  const bool own = out.replicated();
  begin_step();
  const RopeTable& angles = rope_table(std::move(inv_freq), attn_factor, own, threads);
  const OpTable& table = op_table(isa);
  const auto rotate = neox ? table.rope_neox : table.rope_norm;
  const int64_t half = d / 2, n = max_tokens_;
  const int64_t turned = first ? 0 : head_dim - d, kept = first ? d : 0;  // where they begin
  std::vector<Operand> inputs{in};
  if (!own) inputs.push_back({reinterpret_cast<uint8_t*>(angles.cosine), n * half * 8, 1, nullptr, 0});
  add_rows(inputs, out, width * 4, false, threads,
           [&angles, rotate, in, out, heads, head_dim, width, d, half, turned, kept, n](int thread, int64_t begin, int64_t end,
                                                                                const RunState&) {
             const float* cosine = angles.cosine + thread * angles.floats_per_thread;
             const float* sine = cosine + n * half;
             for (int64_t row = begin; row < end; ++row) {
               for (int64_t h = 0; h < heads; ++h) {
                 const float* from = in.at(thread) + row * width + h * head_dim;
                 float* to = out.at(thread) + row * width + h * head_dim;
                 if (from != to) std::memcpy(to + kept, from + kept, static_cast<size_t>(head_dim - d) * 4);
                 rotate(from + turned, cosine + row * half, sine + row * half, d, to + turned);
               }
             }
           });
  return n_steps_ - 1;
}

}  // namespace kbench
