// Latent attention, decompressed: a stretch of cached latents is multiplied out to one head's keys and values, which all
// of the call's tokens then attend to before the next stretch. Nothing but that stretch is ever decompressed.
//
//   latents   quantised once for all heads, as any matrix' input
//   stretch   keys [positions][nope | rope], values [positions][v]   of one head, in the second-level cache
//   state     running maximum, sum and output of the head's tokens, see attention_block.h
//
// (head, positions) are shared out as in attention_units.h, with all tokens in one block.
#include <algorithm>
#include <stdexcept>

#include "activation.h"
#include "attention_parts.h"
#include "attention_units.h"
#include "ops.h"
#include "program.h"
#include "raw_tiles.h"

namespace kbench {

namespace {

// Keys of 192 and values of 128 floats: 320 KiB. Fewer positions would unpack a head's weights too often.
constexpr int64_t kStretch = 256;
// Latents that are widened to floats at a time before they are quantised.
constexpr int64_t kWidened = 16;

// The positions that any of a call's tokens sees, counted from the first of them, `base`.
struct Seen {
  int64_t base, n;
  Seen(const RunState& s, int64_t window)
      : base(first_seen(s.spans[0].position, window)), n(s.spans[0].position + s.n_tokens - base) {}
};

// All heads of a call, each cut into units of positions.
struct HeadUnits {
  int64_t heads, per_head;
  HeadUnits(int64_t heads, const Seen& seen)
      : heads(heads), per_head((seen.n + kAttentionUnit - 1) / kAttentionUnit) {}
  int64_t total() const { return heads * per_head; }
};

// The last of a thread's two parts is that of the head that it begins; the first that of the one it only ends.
int64_t part_slot(int thread, bool begins) { return 2 * thread + (begins ? 1 : 0); }

void check(const MlaExpansion& w, int64_t kv_lora) {
  if (w.k.empty() || w.k.size() != w.v.size()) throw std::invalid_argument("mla_decompressed: no matrices for a head");
  for (const auto* side : {&w.k, &w.v}) {
    for (const PackedMatrix& m : *side) {
      if (m.n < 1 || m.n != side->front().n || m.k != kv_lora || m.format != side->front().format) {
        throw std::invalid_argument("mla_decompressed: the heads' matrices differ in shape or format");
      }
    }
  }
}

}  // namespace

int Program::mla_decompressed(Isa isa, MlaExpansion w, int64_t q, int64_t latent, int64_t y, int64_t kv_lora,
                              int64_t rope, const CacheView& cache, float scale, int64_t window, int threads) {
  threads = stage_threads(threads);
  check_window(window, "mla_decompressed");
  if (max_spans_ > 1) throw std::invalid_argument("mla_decompressed: several sequences; accepted: a program for one");
  check(w, kv_lora);
  check_cache(cache, {kv_lora, rope}, "mla_decompressed");
  if (rope < 0 || rope > arena_bytes_) throw std::invalid_argument("mla_decompressed: rope is " + std::to_string(rope));
  const int64_t heads = static_cast<int64_t>(w.k.size()), nope = w.k[0].n, d_k = nope + rope, d_v = w.v[0].n;
  const int64_t width = kv_lora + rope, row_bytes = cache_row_bytes(cache.type, width);
  const Operand queries = value(q, max_tokens_, heads * d_k, "q"), fresh = value(latent, max_tokens_, width, "latent");
  const Operand at = place(y, max_tokens_, heads * d_v, "y");
  for (const Operand& x : {queries, fresh}) {
    if (overlap(x.shared, x.n_bytes, at.shared, at.n_bytes))
      throw std::invalid_argument("mla_decompressed: y overlaps an input");
  }
  begin_step();
  check_room(cache, window);
  const int64_t tokens_max = max_tokens_;
  const OpTable& table = op_table(isa);
  const auto row = [cache, row_bytes](const RunState& s, int64_t position) {
    const int64_t slot = s.spans[0].sequence * cache.capacity + position % cache.capacity;
    return static_cast<uint8_t*>(cache.k) + slot * row_bytes;
  };
  const Access cached{cache.k, cache.sequences * cache.capacity * row_bytes, false, {}};
  Access appended = cached;
  appended.write = true;
  add_stage(
      [=, &table](const Lane& lane, const RunState& s) {
        const Range tokens = share(s.n_tokens, lane.thread, lane.n_threads);
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
          table.to_cache[static_cast<int>(cache.type)](fresh.at(lane.thread) + t * width, width,
                                                       row(s, s.spans[0].position + t));
        }
      },
      {reads(fresh), appended}, threads);

  // Every cached latent as the matrices read it: as floats, or quantised. Less than 2 % of all layers' caches.
  const bool quantise = quantised(w.k[0].format) || quantised(w.v[0].format);
  const bool floats = !quantised(w.k[0].format) || !quantised(w.v[0].format);
  const int64_t latent_bytes = quantise ? activation_bytes(cache.capacity, kv_lora, planes_) : 0;
  uint8_t* latents = shared_scratch("mla's latents", latent_bytes + (floats ? cache.capacity * kv_lora * 4 : 0));
  const int64_t own_floats = kWidened * kv_lora;
  float* widened = floats ? reinterpret_cast<float*>(latents + latent_bytes)
                          : reinterpret_cast<float*>(shared_scratch("mla's widened", own_floats * 4 * threads));
  const Access latents_read{latents, latent_bytes + (floats ? cache.capacity * kv_lora * 4 : 0), false, {}};
  Access latents_written = latents_read;
  latents_written.write = true;
  const MatmulTable& matmul = matmul_table(isa);
  const auto kernel = [&matmul, window, planes = planes_, p = parameters_](const PackedMatrix& m, const RunState& s) {
    return choose_kernel(matmul, m.format, std::min(Seen(s, window).n, kStretch), planes, p);
  };
  const auto activation = [=, capacity = cache.capacity, planes = planes_]() {
    Activation a = quantise ? activation_in(latents, capacity, kv_lora, planes) : Activation{};
    a.k = a.ldx = kv_lora;
    a.x = floats ? widened : nullptr;
    return a;
  };
  // Both halves are of one format but where a file stores them apart.
  const PackedMatrix first_k = w.k[0], first_v = w.v[0];
  add_stage(
      [=, &table, &matmul](const Lane& lane, const RunState& s) {
        const Seen seen(s, window);
        const Range rows = share(seen.n, lane.thread, lane.n_threads);
        Activation all = activation();
        bool words = false, bytes = false;
        for (const PackedMatrix& m : {first_k, first_v}) {
          if (quantised(m.format)) (kernel(m, s).words ? words : bytes) = true;
        }
        if (!words) all.words = nullptr;
        if (!bytes) all.q = nullptr;
        for (int64_t begin = rows.begin; begin < rows.end; begin += kWidened) {
          const int64_t n = std::min(rows.end - begin, kWidened);
          float* x = widened + (floats ? begin * kv_lora : lane.thread * own_floats);
          for (int64_t i = 0; i < n; ++i) {
            table.from_cache[static_cast<int>(cache.type)](row(s, seen.base + begin + i), 0, kv_lora,
                                                           x + i * kv_lora);
          }
          if (!quantise) continue;
          Activation a = rows_from(all, begin);
          a.x = x;
          matmul.quantize(a, 0, n);
        }
      },
      {cached, latents_written}, threads);

  const int64_t part_floats = Part::floats(tokens_max, d_v), n_parts = 2 * threads;
  float* parts = reinterpret_cast<float*>(shared_scratch("mla's parts", n_parts * part_floats * 4));
  const int64_t q_floats = round_up(kAttentionRows * d_k, 16), key_floats = round_up(kStretch * d_k, 16);
  const int64_t value_floats = round_up(kStretch * d_v, 16);
  const int64_t thread_floats =
      part_floats + q_floats + key_floats + value_floats + round_up(attention_scratch_floats(d_k), 32);
  float* own = reinterpret_cast<float*>(shared_scratch("mla's own", thread_floats * 4 * threads));
  const Access parts_written{parts, n_parts * part_floats * 4, true, {}};
  add_stage(
      [=, &table, w = std::move(w), p = parameters_](const Lane& lane, const RunState& s) {
        const Seen seen(s, window);
        const HeadUnits units(heads, seen);
        const Range range = share(units.total(), lane.thread, lane.n_threads);
        float* keys = own + lane.thread * thread_floats + part_floats;
        float *values = keys + key_floats, *rows = values + value_floats;
        const Activation latent_rows = activation();
        const KernelChoice make_k = kernel(first_k, s), make_v = kernel(first_v, s);
        AttentionBlock b;
        b.q = rows;
        b.d_k = d_k;
        b.d_v = d_v;
        b.k = reinterpret_cast<const uint8_t*>(keys);
        b.v = reinterpret_cast<const uint8_t*>(values);
        b.k_stride = d_k * 4;
        b.v_stride = d_v * 4;
        b.resume = true;
        b.scratch = rows + q_floats;
        int64_t low[kAttentionRows], high[kAttentionRows];
        b.low = window == 0 ? nullptr : low;
        b.high = high;
        const int64_t position = s.spans[0].position - seen.base;  // of the first token, counted as positions here are
        for (int64_t u = range.begin; u < range.end;) {
          const int64_t head = u / units.per_head, unit0 = head * units.per_head;
          const int64_t u1 = std::min(range.end, unit0 + units.per_head);
          const bool begins = u == unit0, whole = begins && u1 == unit0 + units.per_head;
          const Part part(whole ? own + lane.thread * thread_floats
                                : parts + part_slot(lane.thread, begins) * part_floats,
                          tokens_max);
          part.clear(s.n_tokens, d_v);
          const int64_t end = std::min((u1 - unit0) * kAttentionUnit, seen.n);
          for (int64_t p0 = (u - unit0) * kAttentionUnit; p0 < end; p0 += kStretch) {
            const int64_t n = std::min(end - p0, kStretch);
            const PackedMatrix &wk = w.k[static_cast<size_t>(head)], &wv = w.v[static_cast<size_t>(head)];
            Activation a = rows_from(latent_rows, p0);
            multiply(make_k.fn, wk, a, n, 0, wk.tiles(), nullptr, keys, d_k, p);
            multiply(make_v.fn, wv, a, n, 0, wv.tiles(), nullptr, values, d_v, p);
            for (int64_t i = 0; i < n; ++i) {
              table.from_cache[static_cast<int>(cache.type)](row(s, seen.base + p0 + i), kv_lora, rope,
                                                             keys + i * d_k + nope);
            }
            b.end = n;
            for (int64_t t0 = 0; t0 < s.n_tokens; t0 += kAttentionRows) {
              const int64_t t1 = std::min(t0 + kAttentionRows, s.n_tokens);
              if (position + t1 <= p0) continue;  // the last token of the block comes before all of these
              if (first_seen(position + t0, window) >= p0 + n) continue;  // these are out of the first one's window
              for (int64_t t = t0; t < t1; ++t) {
                low[t - t0] = first_seen(position + t, window) - p0;
                high[t - t0] = position + t + 1 - p0;
                table.scale(queries.at(lane.thread) + (t * heads + head) * d_k, scale, d_k, rows + (t - t0) * d_k);
              }
              b.rows = t1 - t0;
              b.max = part.max + t0;
              b.sum = part.sum + t0;
              b.out = part.out + t0 * d_v;
              table.attention(b);
            }
          }
          for (int64_t t = 0; t < s.n_tokens && whole; ++t) {
            table.scale(part.out + t * d_v, 1.0f / part.sum[t], d_v, at.at(0) + (t * heads + head) * d_v);
          }
          u = u1;
        }
      },
      {reads(queries), cached, latents_read, parts_written, {at.shared, at.n_bytes, true, {}}}, threads);

  const Operand out = shared_output(y, max_tokens_, heads * d_v, "y");
  if (threads == 1) return n_steps_ - 1;  // nothing was cut
  Access parts_read = parts_written;
  parts_read.write = false;
  add_stage(
      [=, &table](const Lane& lane, const RunState& s) {
        const HeadUnits units(heads, Seen(s, window));
        int64_t turn = 0;
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t first = head * units.per_head;
          const int t0 = holder(first, units.total(), threads);
          const int t1 = holder(first + units.per_head - 1, units.total(), threads);
          if (t0 == t1) continue;
          const auto each_part = [&](const auto& fn) {
            for (int t = t0; t <= t1; ++t) {
              if (share(units.total(), t, threads).empty()) continue;
              fn(Part(parts + part_slot(t, t == t0) * part_floats, tokens_max));
            }
          };
          for (int64_t t = 0; t < s.n_tokens; ++t) {
            if (turn++ % lane.n_threads != lane.thread) continue;
            merge_row(table, each_part, t, d_v, 0, d_v, out.at(0) + (t * heads + head) * d_v);
          }
        }
      },
      {parts_read, writes(out)}, threads);
  return n_steps_ - 1;
}

}  // namespace kbench
