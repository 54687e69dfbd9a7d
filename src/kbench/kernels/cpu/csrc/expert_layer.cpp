#include "expert_layer.h"

#include <algorithm>
#include <cstring>

#include "packed_layout.h"
#include "raw_tiles.h"

namespace kbench {
namespace {

// Columns of gate and up that are made, joined and quantised together: one quantisation block, two tiles.
constexpr int64_t kUnitColumns = kBlock;
// Results of a few pairs, [pairs][columns] floats: 16 KiB, two of which fit the first-level cache.
constexpr int64_t kLinePairs = 32;
constexpr int64_t kLineColumns = 128;
// A panel kernel puts its activations in order before it multiplies: the more columns follow, the less that costs. And
// it unpacks the weights anew for every chunk of rows, so all pairs of an expert should come at once. 64 Ki floats are
// 42 pairs (512 tokens, 6 of 72 experts) of all 1536 columns, and stay in the second- and third-level caches.
constexpr int64_t kPanelPairs = 128;
constexpr int64_t kPanelFloats = 64 * 1024;
// Columns that a lane takes at least at a time where they are not in fixed shares.
constexpr int64_t kLeastColumns = kLineColumns;
// An expert's weights cost as much to read and unpack as this many tokens cost to multiply.
constexpr int64_t kStreamTokens = 4;

// The ranges of equal size, in whole `unit`s, that [0, n) is cut into where none may be larger than `most`.
struct Cuts {
  int64_t units, parts, unit, n;
  Cuts(int64_t n_, int64_t most, int64_t unit_) : units((n_ + unit_ - 1) / unit_), parts(0), unit(unit_), n(n_) {
    const int64_t most_units = std::max<int64_t>(most / unit, 1);
    parts = (units + most_units - 1) / most_units;
  }
  Range operator[](int64_t i) const {
    const Range r = share(units, i, parts);
    return {r.begin * unit, std::min(r.end * unit, n)};
  }
};

// What a kernel asks for ahead of the weights in use, it cannot ask for across the gap between two matrices.
void prefetch(const PackedMatrix& w, int64_t tile, int64_t n_bytes) {
  if (w.raw != nullptr) return;  // its tiles are made by packing, which asks for its own rows
  const uint8_t* first = w.data + tile * w.tile_bytes;
  for (int64_t at = 0; at < std::min(n_bytes, w.tile_bytes); at += kLineBytes) __builtin_prefetch(first + at);
}

void copy_rows(const void* from, void* to, int64_t n_bytes) { std::memcpy(to, from, static_cast<size_t>(n_bytes)); }

}  // namespace

// How many pairs and columns are multiplied at a time.
struct ExpertLayer::Block {
  Cuts pairs, columns;
  Block(bool panels, int64_t n_pairs, int64_t n_columns, int64_t unit)
      : pairs(n_pairs, panels ? kPanelPairs : kLinePairs, 1),
        columns(n_columns, panels ? kPanelFloats / std::min(n_pairs, kPanelPairs) : kLineColumns, unit) {}
};

ExpertPlan ExpertLayer::plan(int thread) const {
  return {plans + thread * ExpertPlan::ints(experts(), max_pairs), experts(), max_pairs};
}

int64_t ExpertLayer::own_floats() const {
  const int64_t lines = kLinePairs * kLineColumns;
  const int64_t all = max_pairs * round_up(std::max(n, k), kUnitColumns);
  return 2 * (one_token ? lines : std::max(lines, std::min(kPanelFloats, all)));
}

// No expert has more pairs than there are tokens, but where a token chose one twice: the forms of the tokens' rows were
// made for at most all of them.
KernelChoice ExpertLayer::kernel(const PackedMatrix& w, int64_t pairs, int64_t tokens) const {
  return choose_kernel(table, w.format, std::min(pairs, tokens), planes, parameters);
}

void ExpertLayer::gather(const Lane& lane, const Activation& x, int64_t tokens) const {
  const ExpertPlan sorted = plan(lane.thread);
  const Range part = share(sorted.begin[experts()], lane.thread, lane.n_threads);
  for (int32_t i = 0; i < *sorted.n_active; ++i) {
    const int64_t e = sorted.active[i];
    const int64_t begin = std::max<int64_t>(part.begin, sorted.begin[e]);
    const int64_t end = std::min<int64_t>(part.end, sorted.begin[e + 1]);
    if (begin >= end) continue;
    bool floats = false, bytes = false, words = false;
    for (const PackedMatrix* w : {&gate[static_cast<size_t>(e)], &up[static_cast<size_t>(e)]}) {
      const bool reads_words = kernel(*w, sorted.count(e), tokens).words;
      (!quantised(w->format) ? floats : reads_words ? words : bytes) = true;
    }
    for (int64_t p = begin; p < end; ++p) {
      const Activation from = rows_from(x, sorted.pair[p] / top_k), to = rows_from(rows, p);
      if (bytes) {
        copy_rows(from.q, to.q, planes * k);
        copy_rows(from.scale, to.scale, planes * (k / kBlock) * 4);
        copy_rows(from.sum, to.sum, planes * (k / kBlock) * 8);
      }
      if (words) {
        copy_rows(from.words, to.words, k * 2);
        copy_rows(from.word_scale, to.word_scale, k / kBlock * 4);
        copy_rows(from.word_sum, to.word_sum, k / kBlock * 8);
      }
      if (floats) copy_rows(from.x, const_cast<float*>(to.x), k * 4);
    }
  }
}

void ExpertLayer::activate(const float* g, const float* u, int64_t columns, float* y) const {
  if (options.clamped) {
    ops.clamped_swiglu(g, u, columns, options.alpha, options.limit, y);
  } else {
    ops.silu_mul(g, u, columns, y);
  }
}

// hidden[p .. p + pairs][column .. column + columns] of g and u, in the form that down's kernel reads.
void ExpertLayer::join(const float* g, float* u, int64_t pairs, int64_t stride, int64_t p, int64_t column,
                       int64_t columns, bool words) const {
  for (int64_t t = 0; t < pairs; ++t) {
    float* row = u + t * stride;
    if (hidden.q == nullptr) {
      activate(g + t * stride, row, columns, const_cast<float*>(hidden.x) + (p + t) * n + column);
      continue;
    }
    activate(g + t * stride, row, columns, row);
    Activation piece = rows_from(hidden, p + t);
    piece.x = row;
    piece.k = piece.ldx = columns;
    piece.ldq = n;
    if (words) {
      piece.q = nullptr;
      piece.words += column;
      piece.word_scale += column / kBlock;
      piece.word_sum += column / kBlock * 2;
    } else {
      piece.words = nullptr;
      piece.q += column;
      piece.scale += column / kBlock;
      piece.sum += column / kBlock * 2;
    }
    table.quantize(piece, 0, 1);
  }
}

void ExpertLayer::gate_up(const Lane& lane, const RunState& s, const Activation& x) const {
  const ExpertPlan sorted = plan(lane.thread);
  float* g = own + lane.thread * own_floats();
  float* u = g + own_floats() / 2;
  const auto make = [&](int32_t i, const Range& units) {
    const int64_t e = sorted.active[i], count = sorted.count(e);
    const PackedMatrix &wg = gate[static_cast<size_t>(e)], &wu = up[static_cast<size_t>(e)];
    const KernelChoice kg = kernel(wg, count, s.n_tokens), ku = kernel(wu, count, s.n_tokens);
    const float *bias_g = of_expert(options.gate_bias, e, n), *bias_u = of_expert(options.up_bias, e, n);
    const bool words = kernel(down[static_cast<size_t>(e)], count, s.n_tokens).words;
    const bool panels = is_panel(kg, wg) || is_panel(ku, wu);
    const int64_t first = units.begin * kUnitColumns, last = std::min(units.end * kUnitColumns, n);
    // One token has one row: an expert that is chosen twice (logits of NaN do that) reads it twice.
    const Block block(panels, count, last - first, kUnitColumns);
    const int64_t parts = one_token ? count : block.pairs.parts;
    for (int64_t j = 0; j < block.columns.parts; ++j) {
      if (j == block.columns.parts - 1 && i + 1 < *sorted.n_active) {
        prefetch(gate[static_cast<size_t>(sorted.active[i + 1])], 0, parameters.prefetch_bytes);
        prefetch(up[static_cast<size_t>(sorted.active[i + 1])], 0, parameters.prefetch_bytes);
      }
      const int64_t c = first + block.columns[j].begin, columns = first + block.columns[j].end - c;
      const int64_t tile0 = c / kTileRows, tile1 = (c + columns + kTileRows - 1) / kTileRows;
      const int64_t stride = round_up(columns, kUnitColumns);
      for (int64_t part = 0; part < parts; ++part) {
        const Range pairs = share(count, part, parts);
        const int64_t p = sorted.begin[e] + pairs.begin, n_pairs = pairs.end - pairs.begin;
        const Activation a = rows_from(x, one_token ? 0 : p);
        multiply(kg.fn, wg, a, n_pairs, tile0, tile1, bias_g, g - c, stride, parameters);
        multiply(ku.fn, wu, a, n_pairs, tile0, tile1, bias_u, u - c, stride, parameters);
        join(g, u, n_pairs, stride, p, c, columns, words);
      }
    }
  };
  const int64_t units = (n + kUnitColumns - 1) / kUnitColumns;
  if (gate_up_partition->kind() == Partition::Kind::fixed) {
    sorted.share_units(units, lane.thread, lane.n_threads, [](int64_t pairs) { return pairs + kStreamTokens; }, make);
  } else {
    // Units of all active experts, one expert after the other.
    Partition::Work work = gate_up_partition->work(lane, s.run, units * *sorted.n_active, kLeastColumns / kUnitColumns);
    for (Range r; work.next(&r);) {
      for (int64_t i = r.begin / units; i * units < r.end; ++i) {
        make(static_cast<int32_t>(i), {std::max<int64_t>(r.begin - i * units, 0), std::min(r.end - i * units, units)});
      }
    }
  }
  const Range tiles = share(down[0].tiles(), lane.thread, lane.n_threads);
  if (*sorted.n_active > 0 && !tiles.empty()) {
    prefetch(down[static_cast<size_t>(sorted.active[0])], tiles.begin, parameters.prefetch_bytes);
  }
}

void ExpertLayer::sum_down(const Lane& lane, const RunState& s, const float* weights, float* y) const {
  const ExpertPlan sorted = plan(lane.thread);
  float* results = own + lane.thread * own_floats();
  Partition::Work work = down_partition->work(lane, s.run, down[0].tiles(), kLeastColumns / kTileRows);
  for (Range tiles; work.next(&tiles);) {
    const int64_t first = tiles.begin * kTileRows, last = std::min(tiles.end * kTileRows, k);
    for (int64_t t = 0; t < s.n_tokens; ++t) std::fill(y + t * k + first, y + t * k + last, 0.0f);
    for (int32_t i = 0; i < *sorted.n_active; ++i) {
      const int64_t e = sorted.active[i], count = sorted.count(e);
      const PackedMatrix& w = down[static_cast<size_t>(e)];
      const KernelChoice kd = kernel(w, count, s.n_tokens);
      const float* bias = of_expert(options.down_bias, e, k);
      const Block block(is_panel(kd, w), count, last - first, kTileRows);
      for (int64_t j = 0; j < block.columns.parts; ++j) {
        if (j == block.columns.parts - 1 && i + 1 < *sorted.n_active) {
          prefetch(down[static_cast<size_t>(sorted.active[i + 1])], tiles.begin, parameters.prefetch_bytes);
        }
        const int64_t c = first + block.columns[j].begin, columns = first + block.columns[j].end - c;
        const int64_t tile0 = c / kTileRows, tile1 = (c + columns + kTileRows - 1) / kTileRows;
        const int64_t stride = round_up(columns, kTileRows);
        for (int64_t part = 0; part < block.pairs.parts; ++part) {
          const Range pairs = block.pairs[part];
          const int64_t p = sorted.begin[e] + pairs.begin, n_pairs = pairs.end - pairs.begin;
          multiply(kd.fn, w, rows_from(hidden, p), n_pairs, tile0, tile1, bias, results - c, stride, parameters);
          for (int64_t t = 0; t < n_pairs; ++t) {
            const int64_t pair = sorted.pair[p + t];
            ops.add_scaled(results + t * stride, weights[pair], columns, y + pair / top_k * k + c);
          }
        }
      }
    }
  }
}

}  // namespace kbench
