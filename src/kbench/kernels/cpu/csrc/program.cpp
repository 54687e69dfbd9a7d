#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace kbench {
namespace {

// Elements (floats computed, copied or quantised) that cost a thread about as much as a barrier: a barrier takes 0.3
// microseconds with 2 threads and 2 to 3 with 64; the cheap operations move 2 to 4 elements a nanosecond.
constexpr int64_t kSmallElements = 8192;
// Of a sequence: no counter that is derived from a position comes near its end.
constexpr int64_t kMostPositions = int64_t{1} << 40;

std::string named(const char* name, int64_t offset) {
  return std::string(name) + " at offset " + std::to_string(offset);
}

}  // namespace

Program::Program(ThreadPool& pool, uint8_t* arena, int64_t arena_bytes, int64_t max_tokens, int64_t max_spans)
    : pool_(pool),
      arena_(arena),
      arena_bytes_(arena_bytes),
      max_tokens_(max_tokens),
      max_spans_(max_spans),
      n_threads_(pool.threads()),
      barrier_(pool.threads()) {
  if (reinterpret_cast<uintptr_t>(arena) % 64 != 0) throw std::invalid_argument("the arena is not 64-byte aligned");
  // A token more than this would not fit any arena either; it bounds the scratch that a wrong argument can ask for.
  if (max_tokens < 1 || max_tokens > (int64_t{1} << 20)) {
    throw std::invalid_argument("max_tokens is " + std::to_string(max_tokens) + "; accepted: 1 to 1048576");
  }
  if (max_spans < 1 || max_spans > max_tokens) {
    throw std::invalid_argument("max_sequences is " + std::to_string(max_spans) + "; accepted: 1 to max_tokens");
  }
}

// Every recording method begins with this.
int Program::stage_threads(int threads) const {
  if (runs_.load(std::memory_order_acquire) != 0) {
    throw std::runtime_error("a step was recorded while another thread runs the program");
  }
  if (threads < 0 || threads > n_threads_) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; accepted: 0 (all) to the pool's " +
                                std::to_string(n_threads_));
  }
  return threads == 0 ? n_threads_ : threads;
}

std::shared_ptr<Partition> Program::make_partition(int threads) const {
  return std::make_shared<Partition>(static_cast<Partition::Kind>(block_[Parameter::partition]), threads);
}

uint8_t* Program::scratch(int64_t n_bytes) {
  buffers_.emplace_back(n_bytes);
  scratch_bytes_ += n_bytes;
  return buffers_.back().data();
}

uint8_t* Program::shared_scratch(const char* name, int64_t n_bytes) {
  uint8_t*& data = shared_scratch_[{name, n_bytes}];
  if (data == nullptr) data = scratch(n_bytes);
  return data;
}

bool Program::small(int64_t elements) const {
  return n_threads_ > 1 && elements <= kSmallElements;
}

void Program::add_stage(StageFn fn, const std::vector<Access>& accesses, int threads) {
  // A stage's own in-place accesses are its own business; against the others it is judged as a whole.
  const bool barrier = n_threads_ > 1 && hazards_.needs_barrier(accesses);
  stages_.push_back({std::move(fn), threads, barrier, n_steps_ - 1});
}

Operand Program::place(int64_t offset, int64_t rows, int64_t width, const char* name) const {
  if (width < 1 || width > arena_bytes_ / 4) {
    throw std::invalid_argument(named(name, offset) + " is " + std::to_string(width) +
                                " wide; accepted: 1 to the arena's " + std::to_string(arena_bytes_ / 4));
  }
  const int64_t n_bytes = rows * width * 4;
  if (offset < 0 || offset % 4 != 0 || n_bytes > arena_bytes_ || offset > arena_bytes_ - n_bytes) {
    throw std::invalid_argument(named(name, offset) + " takes " + std::to_string(n_bytes) +
                                " bytes; accepted: a multiple of 4 inside the arena of " +
                                std::to_string(arena_bytes_));
  }
  return {arena_ + offset, n_bytes, rows, nullptr, 0};
}

Operand Program::value(int64_t offset, int64_t rows, int64_t width, const char* name) {
  Operand operand = place(offset, rows, width, name);
  const int64_t n_bytes = operand.n_bytes;
  for (const auto& [key, valid] : replicated_) {
    if (!valid || offset >= key.first + key.second || key.first >= offset + n_bytes) continue;
    const Operand& replica = replicas_.at(key);
    if (key.first == offset && key.second >= n_bytes) {
      // Fewer rows (one_row) of the same value are its beginning.
      operand.copies = replica.copies;
      operand.stride = replica.stride;
    } else {
      add_stage([replica](const Lane&, const RunState& s) { land(replica, s); },
                {{replica.shared, replica.n_bytes, true, {Split::first, 0, 0}}}, 1);
    }
  }
  return operand;
}

void Program::land(const Operand& replica, const RunState& s) {
  const int64_t n_bytes = replica.n_bytes / replica.rows * std::min(replica.rows, s.n_tokens);
  std::memcpy(replica.shared, replica.at(0), static_cast<size_t>(n_bytes));
}

Operand Program::shared_output(int64_t offset, int64_t rows, int64_t width, const char* name) {
  const Operand y = place(offset, rows, width, name);
  const auto hit = [&](int64_t begin, int64_t n_bytes) {
    return offset < begin + n_bytes && begin < offset + y.n_bytes;
  };
  for (auto& [key, valid] : replicated_) valid = valid && !hit(key.first, key.second);
  for (auto& [key, slot] : slots_) {
    if (slot.x >= 0 && hit(slot.x, max_tokens_ * slot.base.k * 4)) slot.x = -1;
  }
  return y;
}

Operand Program::replicated_output(int64_t offset, int64_t rows, int64_t width, const char* name) {
  Operand y = shared_output(offset, rows, width, name);
  const auto key = std::make_pair(offset, y.n_bytes);
  auto found = replicas_.find(key);
  if (found == replicas_.end()) {
    y.stride = round_up(y.n_bytes, 2 * kCacheLine);  // prefetchers fetch lines in pairs
    y.copies = scratch(y.stride * n_threads_);
    found = replicas_.emplace(key, y).first;
  }
  replicated_[key] = true;
  return found->second;
}

Operand Program::output(int64_t offset, int64_t rows, int64_t width, const char* name) {
  place(offset, rows, width, name);  // bounds, before sizes are multiplied
  return small(rows * width) ? replicated_output(offset, rows, width, name) : shared_output(offset, rows, width, name);
}

Access Program::reads(const Operand& x, Split split) {
  return {x.shared, x.replicated() ? 0 : x.n_bytes, false, split};
}

Access Program::writes(const Operand& y, Split split) {
  return {y.shared, y.replicated() ? 0 : y.n_bytes, true, split};
}

void Program::add_rows(const std::vector<Operand>& inputs, const Operand& y, int64_t row_bytes, bool one_row,
                       int threads, RowsFn fn) {
  std::vector<Access> accesses;
  if (y.replicated()) {
    for (const Operand& x : inputs) accesses.push_back(reads(x));
    accesses.push_back(writes(y));
    add_stage([fn = std::move(fn), one_row](const Lane& lane,
                                            const RunState& s) { fn(lane.thread, 0, one_row ? 1 : s.n_tokens, s); },
              accesses, 0);
    return;
  }
  // One row and all rows are cut at other places: a negative count keeps their splits apart.
  const int cut = one_row ? -threads : threads;
  for (const Operand& x : inputs) {
    accesses.push_back(reads(x, {Split::rows, x.n_bytes / (one_row ? 1 : max_tokens_), cut}));
  }
  accesses.push_back(writes(y, {Split::rows, row_bytes, cut}));
  add_stage(
      [fn = std::move(fn), one_row](const Lane& lane, const RunState& s) {
        const int64_t n = one_row ? 1 : s.n_tokens;
        const int64_t begin = n * lane.thread / lane.n_threads, end = n * (lane.thread + 1) / lane.n_threads;
        if (begin < end) fn(lane.thread, begin, end, s);
      },
      accesses, threads);
}

int Program::n_barriers() const {
  return static_cast<int>(
      std::count_if(stages_.begin(), stages_.end(), [](const Stage& s) { return s.barrier_before; }));
}

std::vector<int> Program::step_threads() const {
  std::vector<int> threads(static_cast<size_t>(n_steps_), 1);
  for (const Stage& stage : stages_) {
    int& most = threads[static_cast<size_t>(stage.step)];
    most = std::max(most, stage.threads);
  }
  return threads;
}

void Program::check_spans(const RunState& state, std::vector<Span>* spans) const {
  if (state.n_spans < 1 || state.n_spans > max_spans_) {
    throw std::invalid_argument(std::to_string(state.n_spans) + " sequences; this program takes 1 to " +
                                std::to_string(max_spans_));
  }
  spans->assign(state.spans, state.spans + state.n_spans);
  int64_t rows = 0;
  bool fit = true;
  for (Span& span : *spans) {
    if (span.position < 0 || span.position > kMostPositions) {
      throw std::invalid_argument("position is " + std::to_string(span.position) + "; accepted: 0 to " +
                                  std::to_string(kMostPositions));
    }
    if (span.sequence < 0) {
      throw std::invalid_argument("sequence is " + std::to_string(span.sequence) + "; accepted: 0 or more");
    }
    fit = fit && span.n >= 1 && span.n <= state.n_tokens - rows;
    if (!fit) break;
    for (const Span* other = spans->data(); other != &span; ++other) {
      if (other->sequence == span.sequence) {
        throw std::invalid_argument("sequence " + std::to_string(span.sequence) + " twice in one run");
      }
    }
    span.row = rows;
    rows += span.n;
  }
  if (!fit || rows != state.n_tokens) {
    throw std::invalid_argument("the sequences' tokens are not the run's " + std::to_string(state.n_tokens));
  }
}

void Program::run(const RunState& given, std::vector<double>* seconds) {
  RunState state = given;
  if (state.n_tokens < 1 || state.n_tokens > max_tokens_) {
    throw std::invalid_argument(std::to_string(state.n_tokens) + " tokens; this program takes 1 to " +
                                std::to_string(max_tokens_));
  }
  // Before the lock: a thread that does not exist in a forked child may hold it for ever.
  pool_.check_process();
  struct Running {
    std::atomic<int>& runs;
    explicit Running(std::atomic<int>& runs) : runs(runs) { runs.fetch_add(1, std::memory_order_acq_rel); }
    ~Running() { runs.fetch_sub(1, std::memory_order_acq_rel); }
  } running(runs_);
  std::lock_guard<std::mutex> turn(run_mutex_);
  check_spans(given, &spans_);
  state.spans = spans_.data();
  for (const auto& check : checks_) check(state);
  state.run = ++run_;
  if (seconds != nullptr) seconds->assign(static_cast<size_t>(n_steps_), 0.0);
  bad_expert_.store(false, std::memory_order_relaxed);

  int region = 1;
  for (const Stage& stage : stages_) region = std::max(region, stage.threads);
  barrier_.reset(region);
  using Clock = std::chrono::steady_clock;
  pool_.run(region, [&](int thread, int n_threads) {
    Clock::time_point begin;
    int step = -1;
    const auto close_step = [&] {
      barrier_.wait(thread, n_threads);
      if (thread != 0) return;
      const auto now = Clock::now();
      if (step >= 0) (*seconds)[static_cast<size_t>(step)] += std::chrono::duration<double>(now - begin).count();
      begin = now;
    };
    for (const Stage& stage : stages_) {
      if (seconds != nullptr && stage.step != step) {
        close_step();
        step = stage.step;
      } else if (stage.barrier_before) {
        barrier_.wait(thread, n_threads);
      }
      // threads 0: every thread of the region computes it for itself.
      if (stage.threads == 0) {
        stage.fn({thread, n_threads}, state);
      } else if (thread < stage.threads) {
        stage.fn({thread, stage.threads}, state);
      }
    }
    if (seconds != nullptr) close_step();
  });
  for (const auto& [key, valid] : replicated_) {
    if (valid) land(replicas_.at(key), state);
  }
  if (bad_expert_.load(std::memory_order_relaxed)) {
    throw std::invalid_argument("moe_experts: an expert id outside the experts at hand; its output was left out");
  }
}

}  // namespace kbench
