// Linear layers: quantising activations once for all matrices that read them, and sharing out tiles.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "partition.h"
#include "program.h"
#include "raw_tiles.h"

namespace kbench {
namespace {

// A thread should have at least this many tiles before tokens are shared out as well: with fewer, shares differ by
// more than a quarter.
constexpr int64_t kTilesPerThread = 4;
// ... and at least this many tokens per group, or the weights are unpacked for too few.
constexpr int64_t kTokensPerGroup = 16;

// A panel kernel puts its activations in order once for all tiles that it is given: with 8 of them at a time, 256 tokens
// take an eighth longer than with all.
constexpr int64_t kPanelTiles = 16;

template <typename T>
T* shifted(T* p, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(p) + bytes);
}

}  // namespace

void matmul_share(const MatmulTable& table, const PackedMatrix& w, const Activation& x, int64_t tokens,
                  const Lane& lane, Partition& partition, uint32_t run, const float* bias, float* y, int64_t ldy,
                  const MatmulParameters& p) {
  const int64_t tiles = w.tiles();
  if (tiles == 0) return;
  int64_t groups = 1;
  while (lane.n_threads % (2 * groups) == 0 && tiles * groups < kTilesPerThread * lane.n_threads &&
         tokens / (2 * groups) >= kTokensPerGroup) {
    groups *= 2;
  }
  // By all tokens, not by this thread's: activations were quantised for that.
  const MatmulFn fn = choose_kernel(table, w.format, tokens, x.planes, p).fn;
  const bool lines = fn == table.matmul[static_cast<int>(w.format)];
  const auto make = [&](const Range& part, const Range& rows) {
    if (part.empty() || rows.empty()) return;
    multiply(fn, w, rows_from(x, rows.begin), rows.size(), part.begin, part.end, bias, y + rows.begin * ldy, ldy, p);
  };
  if (partition.kind() == Partition::Kind::fixed) {
    make(share(tiles, lane.thread / groups, lane.n_threads / groups), share(tokens, lane.thread % groups, groups));
    return;
  }
  // Units: the tiles for one group of tokens after the other.
  Partition::Work work = partition.work(lane, run, tiles * groups, lines ? 1 : kPanelTiles);
  for (Range r; work.next(&r);) {
    for (int64_t group = r.begin / tiles; group * tiles < r.end; ++group) {
      make({std::max<int64_t>(r.begin - group * tiles, 0), std::min(r.end - group * tiles, tiles)},
           share(tokens, group, groups));
    }
  }
}

Activation Program::ActivationRef::at(int thread) const {
  Activation a = base;
  a.x = x.at(thread);
  if (a.q != nullptr && stride > 0) {
    a.q = shifted(a.q, thread * stride);
    a.scale = shifted(a.scale, thread * stride);
    a.sum = shifted(a.sum, thread * stride);
    a.words = shifted(a.words, thread * stride);
    a.word_scale = shifted(a.word_scale, thread * stride);
    a.word_sum = shifted(a.word_sum, thread * stride);
  }
  return a;
}

std::vector<Access> Program::ActivationRef::accesses() const {
  std::vector<Access> accesses{reads(x)};
  if (shared_bytes > 0) accesses.push_back({base.q, shared_bytes, false, {}});
  return accesses;
}

Program::ActivationRef Program::activation(Isa isa, int64_t x, int64_t rows, int64_t k,
                                           const std::vector<ActivationUse>& uses, bool allow_own, int threads) {
  ActivationRef ref;
  ref.x = value(x, rows, k, "x");
  ref.base.k = ref.base.ldx = k;
  std::vector<ActivationUse> reading;
  for (const ActivationUse& use : uses) {
    if (quantised(use.format)) reading.push_back(use);
  }
  if (reading.empty()) return ref;
  const bool own = allow_own && small(rows * k);
  const std::string key = std::to_string(rows) + "x" + std::to_string(k) + "x" + std::to_string(planes_) +
                          (own ? " own " : " ") + isa_name(isa);
  ActivationSlot& slot = slots_[key];
  if (slot.bytes == 0) {
    slot.bytes = activation_bytes(rows, k, planes_);
    slot.base = activation_in(scratch(own ? slot.bytes * n_threads_ : slot.bytes), rows, k, planes_);
    slot.base.ldx = k;
  }
  ref.base = slot.base;
  ref.stride = own ? slot.bytes : 0;
  ref.shared_bytes = own ? 0 : slot.bytes;
  if (slot.x == x) {
    slot.uses->insert(slot.uses->end(), reading.begin(), reading.end());
    return ref;
  }
  // Matrices recorded later may read the same rows, in another form: what is made is decided when it is made.
  slot.uses = std::make_shared<std::vector<ActivationUse>>(std::move(reading));
  const auto quantise = [&table = matmul_table(isa), uses = slot.uses, planes = planes_](Activation a, int64_t tokens,
                                                                                        const Range& rows) {
    bool words = false, bytes = false;
    for (const ActivationUse& u : *uses) {
      (choose_kernel(table, u.format, tokens, planes, u.parameters).words ? words : bytes) = true;
    }
    if (!words) a.words = nullptr;
    if (!bytes) a.q = nullptr;
    if (!rows.empty()) table.quantize(a, rows.begin, rows.end);
  };
  const bool one_row = rows == 1;
  if (own) {
    add_stage(
        [quantise, ref, one_row](const Lane& lane, const RunState& s) {
          const int64_t tokens = one_row ? 1 : s.n_tokens;
          quantise(ref.at(lane.thread), tokens, {0, tokens});
        },
        {reads(ref.x)}, 0);
  } else {
    const Split split{Split::rows, k * 4, one_row ? -threads : threads};
    add_stage(
        [quantise, ref, one_row](const Lane& lane, const RunState& s) {
          const int64_t tokens = one_row ? 1 : s.n_tokens;
          quantise(ref.at(lane.thread), tokens, share(tokens, lane.thread, lane.n_threads));
        },
        {reads(ref.x, split), {ref.base.q, slot.bytes, true, {}}}, threads);
  }
  slot.x = x;
  return ref;
}

void Program::add_matmul(Isa isa, const PackedMatrix& w, const ActivationRef& x, const Operand& y,
                         std::vector<float> bias, bool one_row, int threads) {
  if (matmul_table(isa).matmul[static_cast<int>(w.format)] == nullptr) {
    throw std::invalid_argument(std::string("no kernel of ") + isa_name(isa) + " for this weight format");
  }
  std::vector<Access> accesses = x.accesses();
  // With enough tokens they are shared out too, and a thread's part is no longer a set of columns; in a partition that
  // is not fixed it is another one in every run.
  std::shared_ptr<Partition> partition = make_partition(threads);
  const bool columns =
      (one_row ? 1 : max_tokens_) < 2 * kTokensPerGroup && partition->kind() == Partition::Kind::fixed;
  accesses.push_back(writes(y, columns ? Split{Split::columns, w.n, threads} : Split{}));
  add_stage(
      [&table = matmul_table(isa), w, x, y, bias = std::move(bias), one_row, partition, p = parameters_](
          const Lane& lane, const RunState& s) {
        matmul_share(table, w, x.at(lane.thread), one_row ? 1 : s.n_tokens, lane, *partition, s.run,
                     bias.empty() ? nullptr : bias.data(), y.at(0), w.n, p);
      },
      accesses, threads);
}

int Program::linear(Isa isa, const PackedMatrix& w, int64_t x, int64_t y, std::vector<float> bias, bool one_row,
                    int threads) {
  threads = stage_threads(threads);
  if (!bias.empty() && static_cast<int64_t>(bias.size()) != w.n) {
    throw std::invalid_argument("linear: a bias of " + std::to_string(bias.size()) + " for " + std::to_string(w.n) +
                                " rows");
  }
  const int64_t rows = one_row ? 1 : max_tokens_;
  const Operand in = value(x, rows, w.k, "x");
  place(y, rows, w.n, "y");
  if (overlap(in.shared, in.n_bytes, arena_ + y, rows * w.n * 4))
    throw std::invalid_argument("linear: x and y overlap");
  begin_step();
  const ActivationRef ref = activation(isa, x, rows, w.k, {{w.format, parameters_}}, true, threads);
  add_matmul(isa, w, ref, shared_output(y, rows, w.n, "y"), std::move(bias), one_row, threads);
  return n_steps_ - 1;
}

int Program::head_linear(Isa isa, std::vector<PackedMatrix> w, int64_t x, int64_t y, int64_t tail, int threads) {
  threads = stage_threads(threads);
  const int64_t heads = static_cast<int64_t>(w.size());
  if (heads == 0) throw std::invalid_argument("head_linear: no matrices");
  for (const PackedMatrix& m : w) {
    if (m.n != w[0].n || m.k != w[0].k || m.format != w[0].format) {
      throw std::invalid_argument("head_linear: the heads' matrices differ in shape or format");
    }
  }
  const int64_t n = w[0].n, k = w[0].k;
  if (n < 1) throw std::invalid_argument("head_linear: matrices of 0 rows");
  if (tail < 0 || tail > arena_bytes_) throw std::invalid_argument("head_linear: tail is " + std::to_string(tail));
  const int64_t x_head = k + tail, y_head = n + tail;
  const Operand in = value(x, max_tokens_, heads * x_head, "x");
  const Operand at = place(y, max_tokens_, heads * y_head, "y");
  if (overlap(in.shared, in.n_bytes, at.shared, at.n_bytes))
    throw std::invalid_argument("head_linear: x and y overlap");
  const Operand out = shared_output(y, max_tokens_, heads * y_head, "y");
  begin_step();
  const bool quantise = quantised(w[0].format);
  // Each thread quantises the heads of its share for itself: they are its own but for the two at the ends.
  const int64_t bytes = quantise ? activation_bytes(max_tokens_, k, planes_) : 0;
  uint8_t* data = quantise ? scratch(bytes * n_threads_) : nullptr;
  add_stage(
      [&table = matmul_table(isa), w = std::move(w), in, out, heads, k, n, tail, x_head, y_head, data, bytes,
       rows = max_tokens_, planes = planes_, p = parameters_](const Lane& lane, const RunState& s) {
        const int64_t tiles = w[0].tiles();
        const KernelChoice kernel = choose_kernel(table, w[0].format, s.n_tokens, planes, p);
        const Range part = share(heads * tiles, lane.thread, lane.n_threads);
        for (int64_t h = part.begin / tiles; h < heads && h * tiles < part.end; ++h) {
          Activation a = data != nullptr ? activation_in(data + lane.thread * bytes, rows, k, planes) : Activation{};
          a.k = k;
          a.x = in.at(lane.thread) + h * x_head;
          a.ldx = heads * x_head;
          if (kernel.words) a.q = nullptr;
          else a.words = nullptr;
          if (data != nullptr) table.quantize(a, 0, s.n_tokens);
          multiply(kernel.fn, w[static_cast<size_t>(h)], a, s.n_tokens, std::max<int64_t>(part.begin - h * tiles, 0),
                   std::min(part.end - h * tiles, tiles), nullptr, out.at(0) + h * y_head, heads * y_head, p);
          if (tail == 0 || part.begin > h * tiles) continue;  // the thread with the head's first tile copies
          for (int64_t t = 0; t < s.n_tokens; ++t) {
            std::memcpy(out.at(0) + t * heads * y_head + h * y_head + n, a.x + t * a.ldx + k,
                        static_cast<size_t>(tail) * 4);
          }
        }
      },
      {reads(in), writes(out)}, threads);
  return n_steps_ - 1;
}

}  // namespace kbench
