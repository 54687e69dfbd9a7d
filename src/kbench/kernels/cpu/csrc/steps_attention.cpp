// Attention over a cache, grouped-query and latent, shared out among threads as attention_units.h says. Parts of a block
// are merged afterwards: each has its own maximum, sum and output. Shares are fixed whatever the parameter `partition`
// says: where a block is cut decides how its sums are rounded.
#include <algorithm>
#include <initializer_list>
#include <stdexcept>

#include "attention_parts.h"
#include "attention_units.h"
#include "ops.h"
#include "program.h"

namespace kbench {

struct Program::AttentionShape {
  int64_t kv_heads = 0;
  int64_t group = 0;  // query heads per KV head
  int64_t d_k = 0;
  int64_t d_v = 0;
  CacheView cache;
  float scale = 1;
  bool latent = false;  // V is the beginning of K's rows
  int64_t window = 0;   // positions that a row sees at the most; 0: all
  const float* sinks = nullptr;  // one a head; null: none
  Operand k, v;         // this call's new rows: [tokens, kv_heads * d]

  const float* sink(int64_t head) const { return sinks == nullptr ? nullptr : sinks + head; }
  AttentionUnits units(const RunState& s) const { return {group, kv_heads, window, s}; }

  // The block's positions [begin, end) of a sequence's cache, in the one or two stretches that their slots are.
  void attend(const OpTable& table, int64_t sequence, int64_t head, int64_t begin, int64_t end, AttentionBlock b) const {
    b.k_stride = row_bytes(d_k);
    b.v_stride = latent ? b.k_stride : row_bytes(d_v);
    b.type = cache.type;
    while (begin < end) {
      b.begin = begin;
      b.end = std::min(end, (begin / cache.capacity + 1) * cache.capacity);
      // As if positions lay there from 0 on, which those of the stretch do.
      b.k = row(cache.k, sequence, head, begin, d_k) - begin * b.k_stride;
      b.v = latent ? b.k : row(cache.v, sequence, head, begin, d_v) - begin * b.v_stride;
      table.attention(b);
      b.resume = true;
      begin = b.end;
    }
  }
  int64_t row_bytes(int64_t d) const { return cache_row_bytes(cache.type, d); }
  int64_t cache_bytes(int64_t d) const { return cache.sequences * kv_heads * cache.capacity * row_bytes(d); }
  uint8_t* row(void* base, int64_t sequence, int64_t head, int64_t position, int64_t d) const {
    const int64_t slot = position % cache.capacity;
    return static_cast<uint8_t*>(base) + ((sequence * kv_heads + head) * cache.capacity + slot) * row_bytes(d);
  }

  void append(const OpTable& table, int thread, const Span& span, int64_t head, int64_t position) const {
    const int64_t token = span.row + position - span.position;
    const auto store = [&](const Operand& from, void* base, int64_t d) {
      table.to_cache[static_cast<int>(cache.type)](from.at(thread) + (token * kv_heads + head) * d, d,
                                                   row(base, span.sequence, head, position, d));
    };
    store(k, cache.k, d_k);
    if (!latent) store(v, cache.v, d_v);
  }
};

namespace {

// Fewer columns than this of a row are not merged by different threads: two cache lines of everyone's part.
constexpr int64_t kMergeColumns = 32;

}  // namespace

void check_cache(const CacheView& cache, std::initializer_list<int64_t> widths, const char* op) {
  if (cache.capacity < 1) throw std::invalid_argument(std::string(op) + ": the cache has no room");
  for (const int64_t d : widths) {
    if (cache_takes(cache.type, d)) continue;
    throw std::invalid_argument(std::string(op) + ": a q8_0 cache of vectors of " + std::to_string(d) +
                                "; accepted: multiples of " + std::to_string(kCacheBlock));
  }
}

void check_window(int64_t window, const char* op) {
  if (window >= 0) return;
  throw std::invalid_argument(std::string(op) + ": window is " + std::to_string(window) +
                              "; accepted: positive, or 0 for none");
}

void Program::check_room(const CacheView& cache, int64_t window) {
  checks_.push_back([sequences = cache.sequences, capacity = cache.capacity, window](const RunState& s) {
    for (int64_t i = 0; i < s.n_spans; ++i) {
      const Span& span = s.spans[i];
      if (span.sequence >= sequences) {
        throw std::invalid_argument("sequence " + std::to_string(span.sequence) + "; the cache has " +
                                    std::to_string(sequences));
      }
      // Around the ring, the last of the tokens must not overwrite what the first one sees.
      const bool around = window > 0 && window <= capacity && span.n - 1 <= capacity - window;
      if (around || (span.position <= capacity && span.n <= capacity - span.position)) continue;
      throw std::invalid_argument("the cache is full: " + std::to_string(span.n) + " tokens at position " +
                                  std::to_string(span.position) + ", capacity " + std::to_string(capacity));
    }
  });
}

void Program::add_attention(const AttentionShape& shape, Isa isa, const Operand& q, int64_t y, int threads) {
  const OpTable& table = op_table(isa);
  const int64_t max_blocks = blocks_of(shape.group * max_tokens_) + max_spans_ - 1, d_v = shape.d_v;
  const int64_t heads = shape.kv_heads * shape.group, width = heads * d_v;
  const int64_t rows_max = std::min(kAttentionRows, shape.group * max_tokens_);
  const int64_t parts_max = threads + shape.kv_heads * max_blocks;
  // Few rows: every thread merges all parts for itself, which saves a barrier, and blocks may all go through parts.
  const bool few = small(parts_max * rows_max * d_v);
  // A block that is alone in its KV head is where the new positions are met, by one thread: it appends them.
  const bool append_inline = blocks_of(shape.group * max_tokens_) == 1;

  check_room(shape.cache, shape.window);
  std::vector<Access> cache_read{{shape.cache.k, shape.cache_bytes(shape.d_k), false, {}}};
  if (!shape.latent) cache_read.push_back({shape.cache.v, shape.cache_bytes(d_v), false, {}});
  std::vector<Access> cache_write = cache_read;
  for (Access& access : cache_write) access.write = true;
  std::vector<Access> new_rows{reads(shape.k)};
  if (!shape.latent) new_rows.push_back(reads(shape.v));

  if (!append_inline) {
    std::vector<Access> accesses = new_rows;
    accesses.insert(accesses.end(), cache_write.begin(), cache_write.end());
    add_stage(
        [&table, shape](const Lane& lane, const RunState& s) {
          const Range rows = share(s.n_tokens * shape.kv_heads, lane.thread, lane.n_threads);
          for (int64_t i = 0; i < s.n_spans; ++i) {
            const Span& span = s.spans[i];
            const int64_t r0 = span.row * shape.kv_heads, r1 = r0 + span.n * shape.kv_heads;
            for (int64_t r = std::max(r0, rows.begin); r < std::min(r1, rows.end); ++r) {
              shape.append(table, lane.thread, span, r % shape.kv_heads, span.position + (r - r0) / shape.kv_heads);
            }
          }
        },
        accesses, threads);
  }

  // Parts: when few, one per (thread, block) that meet: thread + block counts up along the row of units, so it is
  // unique. Otherwise only blocks that are cut need one, at most two per thread: its first and its last.
  const int64_t n_parts = few ? parts_max : 2 * threads;
  const int64_t part_floats = Part::floats(rows_max, d_v);
  float* parts = reinterpret_cast<float*>(shared_scratch("attention's parts", n_parts * part_floats * 4));
  const int64_t q_floats = round_up(rows_max * shape.d_k, 16);
  const int64_t own_floats = q_floats + part_floats + round_up(attention_scratch_floats(shape.d_k), 32);
  float* own = reinterpret_cast<float*>(shared_scratch("attention's own", own_floats * 4 * threads));
  const Operand out_shared = place(y, max_tokens_, width, "y");
  const Access parts_written{parts, n_parts * part_floats * 4, true, {}};

  const auto write_rows = [&table, shape, d_v, width](const PlacedBlock& block, const Part& part, float* y_base) {
    for (int64_t r = block.row0; r < block.row1; ++r) {
      const int64_t i = r - block.row0, token = block.span->row + r / shape.group;
      const int64_t h = block.head * shape.group + r % shape.group;
      const float sum = part.sum[i] + sink_weight(shape.sink(h), part.max[i]);
      table.scale(part.out + i * d_v, 1.0f / sum, d_v, y_base + token * width + h * d_v);
    }
  };

  std::vector<Access> accesses{reads(q)};
  if (append_inline) {
    accesses.insert(accesses.end(), new_rows.begin(), new_rows.end());
    accesses.insert(accesses.end(), cache_write.begin(), cache_write.end());
  } else {
    accesses.insert(accesses.end(), cache_read.begin(), cache_read.end());
  }
  accesses.push_back(parts_written);
  if (!few) accesses.push_back({out_shared.shared, out_shared.n_bytes, true, {}});
  add_stage(
      [=, &table](const Lane& lane, const RunState& s) {
        const AttentionUnits units = shape.units(s);
        const Range range = share(units.total, lane.thread, lane.n_threads);
        float* q_rows = own + lane.thread * own_floats;
        const Part whole_part(q_rows + q_floats, rows_max);
        int64_t low[kAttentionRows], high[kAttentionRows];
        if (range.empty()) return;
        units.each(range, [&](const PlacedBlock& block) {
          const Span& span = *block.span;
          const int64_t u0 = std::max(range.begin - block.first, int64_t{0}), u1 = std::min(range.end - block.first, block.n);
          const int64_t begin = block.begin + u0 * kAttentionUnit;
          const int64_t end = std::min(block.begin + u1 * kAttentionUnit, block.end);
          AttentionBlock b;
          b.rows = block.row1 - block.row0;
          if (append_inline) {
            for (int64_t p = std::max(span.position, begin); p < end; ++p) {
              shape.append(table, lane.thread, span, block.head, p);
            }
          }
          for (int64_t i = 0; i < b.rows; ++i) {
            const int64_t r = block.row0 + i, h = block.head * shape.group + r % shape.group;
            low[i] = units.low(span, r);
            high[i] = units.high(span, r);
            table.scale(q.at(lane.thread) + ((span.row + r / shape.group) * heads + h) * shape.d_k, shape.scale, shape.d_k,
                        q_rows + i * shape.d_k);
          }
          const bool whole = u0 == 0 && u1 == block.n;
          const int64_t slot = few ? lane.thread + block.index : 2 * lane.thread + (u0 == 0 ? 1 : 0);
          const Part part = whole && !few ? whole_part : Part(parts + slot * part_floats, rows_max);
          b.q = q_rows;
          b.d_k = shape.d_k;
          b.d_v = d_v;
          b.low = shape.window == 0 ? nullptr : low;
          b.high = high;
          b.max = part.max;
          b.sum = part.sum;
          b.out = part.out;
          b.scratch = whole_part.max + part_floats;
          shape.attend(table, span.sequence, block.head, begin, end, b);
          if (whole && !few) write_rows(block, part, out_shared.at(0));
        });
      },
      accesses, threads);

  const Operand out = few ? replicated_output(y, max_tokens_, width, "y") : shared_output(y, max_tokens_, width, "y");
  // The parts of a block whose units are held by threads t0 to t1, one after the other.
  const auto parts_of = [=](int64_t total, const PlacedBlock& block, int t0, int t1) {
    return [=, index = block.index](const auto& fn) {
      for (int t = t0; t <= t1; ++t) {
        if (share(total, t, threads).empty()) continue;  // fewer units than threads: some have none between
        fn(Part(parts + (few ? t + index : 2 * t + (t == t0 ? 1 : 0)) * part_floats, rows_max));
      }
    };
  };
  // Every thread for itself, or rows in turn; of a few rows, such as one token's 16 heads for 64 threads, pieces.
  const auto merge = [=, &table](const Lane& lane, const AttentionUnits& units) {
    const int64_t rows = units.state.n_tokens * heads, wanted = (4 * lane.n_threads + rows - 1) / rows;
    const int64_t pieces = few ? 1 : std::min(wanted, (d_v + kMergeColumns - 1) / kMergeColumns);
    int64_t turn = 0;
    units.each({0, units.total}, [&](const PlacedBlock& block) {
      const int64_t last = block.first + block.n - 1;
      const int t0 = holder(block.first, units.total, threads), t1 = holder(last, units.total, threads);
      if (!few && t0 == t1) return;  // written whole already
      const auto each_part = parts_of(units.total, block, t0, t1);
      for (int64_t r = block.row0; r < block.row1; ++r) {
        const int64_t h = block.head * shape.group + r % shape.group;
        float* to = out.at(lane.thread) + (block.span->row + r / shape.group) * width + h * d_v;
        for (int64_t piece = 0; piece < pieces; ++piece) {
          if (!few && turn++ % lane.n_threads != lane.thread) continue;
          const Range columns = share(d_v, piece, pieces);
          merge_row(table, each_part, r - block.row0, d_v, columns.begin, columns.end - columns.begin,
                    to + columns.begin, shape.sink(h));
        }
      }
    });
  };
  Access parts_read = parts_written;
  parts_read.write = false;
  add_stage([=](const Lane& lane, const RunState& s) { merge(lane, shape.units(s)); }, {parts_read, writes(out)},
            few ? 0 : threads);
}

int Program::attention(Isa isa, int64_t q, int64_t k, int64_t v, int64_t y, int64_t heads, int64_t kv_heads, int64_t d,
                       const CacheView& cache, float scale, int64_t window, const std::vector<float>& sinks,
                       int threads) {
  threads = stage_threads(threads);
  check_cache(cache, {d}, "attention");
  check_window(window, "attention");
  if (heads < 1 || kv_heads < 1 || d < 1 || heads % kv_heads != 0 || heads > arena_bytes_ / 4 / d) {
    throw std::invalid_argument("attention: " + std::to_string(heads) + " heads, " + std::to_string(kv_heads) +
                                " kv_heads, d " + std::to_string(d) +
                                "; accepted: heads a multiple of kv_heads, and values that fit the arena");
  }
  if (!sinks.empty() && static_cast<int64_t>(sinks.size()) != heads) {
    throw std::invalid_argument("attention: " + std::to_string(sinks.size()) + " sinks; accepted: none, or one a head: " +
                                std::to_string(heads));
  }
  AttentionShape shape;
  shape.window = window;
  shape.kv_heads = kv_heads;
  shape.group = heads / kv_heads;
  shape.d_k = shape.d_v = d;
  shape.cache = cache;
  shape.scale = scale;
  shape.k = value(k, max_tokens_, kv_heads * d, "k");
  shape.v = value(v, max_tokens_, kv_heads * d, "v");
  const Operand queries = value(q, max_tokens_, heads * d, "q");
  for (const Operand& x : {queries, shape.k, shape.v}) {
    if (overlap(x.shared, x.n_bytes, arena_ + y, queries.n_bytes))
      throw std::invalid_argument("attention: y overlaps an input");
  }
  place(y, max_tokens_, heads * d, "y");  // an error before anything is recorded
  if (!sinks.empty()) {
    float* kept = reinterpret_cast<float*>(scratch(heads * 4));
    std::copy(sinks.begin(), sinks.end(), kept);
    shape.sinks = kept;
  }
  begin_step();
  add_attention(shape, isa, queries, y, threads);
  return n_steps_ - 1;
}

int Program::mla_attention(Isa isa, int64_t q, int64_t latent, int64_t y, int64_t heads, int64_t kv_lora, int64_t rope,
                           const CacheView& cache, float scale, int64_t window, int threads) {
  threads = stage_threads(threads);
  check_cache(cache, {kv_lora, rope}, "mla_attention");
  check_window(window, "mla_attention");
  if (heads < 1 || kv_lora < 1 || rope < 0 || kv_lora > arena_bytes_ || rope > arena_bytes_ ||
      heads > arena_bytes_ / 4 / (kv_lora + rope)) {
    throw std::invalid_argument("mla_attention: heads, kv_lora and rope do not fit the arena");
  }
  AttentionShape shape;
  shape.kv_heads = 1;
  shape.group = heads;
  shape.d_k = kv_lora + rope;
  shape.d_v = kv_lora;
  shape.cache = cache;
  shape.scale = scale;
  shape.latent = true;
  shape.window = window;
  shape.k = value(latent, max_tokens_, shape.d_k, "latent");
  const Operand queries = value(q, max_tokens_, heads * shape.d_k, "q");
  for (const Operand& x : {queries, shape.k}) {
    if (overlap(x.shared, x.n_bytes, arena_ + y, max_tokens_ * heads * kv_lora * 4)) {
      throw std::invalid_argument("mla_attention: y overlaps an input");
    }
  }
  place(y, max_tokens_, heads * kv_lora, "y");
  begin_step();
  add_attention(shape, isa, queries, y, threads);
  return n_steps_ - 1;
}

}  // namespace kbench
