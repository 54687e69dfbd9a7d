// A run of consecutive CPU operations, recorded once and replayed for every token or chunk inside one parallel region.
//
//   step   what one call recorded: an operation
//   stage  a part of a step that a thread runs without waiting; barriers stand between stages, where Hazards wants one
//
// Values live in an arena that the caller lays out: row-major [rows, width] floats (int32 for expert ids) at byte
// offsets. A small value (one token's hidden state) is *replicated*: every thread computes all of it into a copy of its
// own, which costs less than the barrier that sharing would need. Thread 0's copy lands in the arena when the run ends,
// unless a later step has written over any part of it; before that where a step reads a part of it.
//
// A llama layer at one token then has five barriers:
//   add, norm | q k v linears ‖ ropes | attention ‖ combine, quantise | o linear ‖ add, norm, quantise |
//   gate, up linears, silu_mul ‖ quantise | down linear ‖ next layer
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "activation.h"
#include "aligned_buffer.h"
#include "barrier.h"
#include "block_parameters.h"
#include "cache_type.h"
#include "hazards.h"
#include "isa.h"
#include "matmul_table.h"
#include "partition.h"
#include "pool.h"

namespace kbench {

// Tokens of one sequence that follow each other: rows [row, row + n) of a run, at positions [position, position + n).
struct Span {
  int64_t sequence = 0;
  int64_t position = 0;
  int64_t n = 0;
  int64_t row = 0;  // filled in by the program
};

// What changes from run to run.
struct RunState {
  const int32_t* tokens = nullptr;
  int64_t n_tokens = 0;
  const Span* spans = nullptr;  // all rows in order, each sequence once
  int64_t n_spans = 0;
  uint32_t run = 0;  // filled in by the program: which of its runs this is
};

using StageFn = std::function<void(const Lane&, const RunState&)>;

// A value in the arena, or a copy of it per thread.
struct Operand {
  uint8_t* shared = nullptr;
  int64_t n_bytes = 0;
  int64_t rows = 1;           // the most; one row only where fewer tokens make no difference
  uint8_t* copies = nullptr;  // [threads][stride], null when not replicated
  int64_t stride = 0;

  bool replicated() const { return copies != nullptr; }
  float* at(int thread) const {
    return reinterpret_cast<float*>(copies != nullptr ? copies + thread * stride : shared);
  }
};

// One layer's cache: [sequences][heads][capacity] rows. `v` lies inside `k` for latent attention. Position p is in slot
// p % capacity: attention with a window goes on when the slots are used up, and overwrites what no row sees any more.
struct CacheView {
  void* k = nullptr;
  void* v = nullptr;
  CacheType type = CacheType::f32;
  int64_t capacity = 0;
  int64_t sequences = 1;
};

// The first position that a token at position p sees through a window (0: none).
inline int64_t first_seen(int64_t p, int64_t window) { return window == 0 || p < window ? 0 : p - window + 1; }

// Throws std::invalid_argument for a cache without room, or of a type that cannot store vectors of these widths.
void check_cache(const CacheView& cache, std::initializer_list<int64_t> widths, const char* op);

// Throws std::invalid_argument for a negative one.
void check_window(int64_t window, const char* op);

// What multiplies a latent out to keys and values: for each head a matrix [nope, kv_lora] and one [v, kv_lora].
struct MlaExpansion {
  std::vector<PackedMatrix> k, v;
};

struct RouterOptions {
  int64_t top_k = 0;
  bool sigmoid = false;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool norm_topk_prob = false;
  float routed_scaling = 1.0f;
  std::vector<float> bias;        // empty or one per expert; used to choose, not to weigh
  std::vector<float> logit_bias;  // empty or one per expert; a part of the logits
};

// What a layer's experts add to their products, [experts][rows of the matrix] or empty, and how they join gate and up.
struct ExpertOptions {
  std::vector<float> gate_bias, up_bias, down_bias;
  bool clamped = false;  // OpTable::clamped_swiglu with alpha and limit; else silu(gate) * up
  float alpha = 0, limit = 0;
};

// A matrix that reads a value's rows: which of their quantised forms, choose_kernel() says.
struct ActivationUse {
  Format format;
  MatmulParameters parameters;
};

class Program {
 public:
  // arena: 64-byte aligned. Throws std::invalid_argument, as every recording method does, for arguments that do not
  // fit (offsets outside the arena, widths that disagree).
  // max_spans: sequences that one run has tokens of, at the most.
  Program(ThreadPool& pool, uint8_t* arena, int64_t arena_bytes, int64_t max_tokens, int64_t max_spans = 1);

  // Each records a step and returns its index. x, y, ...: byte offsets of values. threads: 0 = the whole pool.
  // Throws std::runtime_error while another thread runs the program.
  int embedding(Isa isa, const PackedMatrix& w, int64_t y, int threads);
  // row_width (0: d): floats from one vector to the next; those behind the first d pass through.
  int rms_norm(Isa isa, int64_t x, std::vector<float> weight, int64_t d, int64_t rows, float eps, int64_t y,
               bool one_row, int64_t row_width, int threads);
  int linear(Isa isa, const PackedMatrix& w, int64_t x, int64_t y, std::vector<float> bias, bool one_row, int threads);
  // Rotates the first or the last d of each head's elements.
  int rope(Isa isa, int64_t x, int64_t y, int64_t heads, int64_t head_dim, int64_t d, bool neox,
           std::vector<float> inv_freq, float attn_factor, bool first, int threads);
  // A row at position p sees positions [p - window + 1, p], all from 0 on where window is 0. sinks (empty, or one a
  // head): scores that join every row's softmax, with values of zero.
  int attention(Isa isa, int64_t q, int64_t k, int64_t v, int64_t y, int64_t heads, int64_t kv_heads, int64_t d,
                const CacheView& cache, float scale, int64_t window, const std::vector<float>& sinks, int threads);
  int mla_attention(Isa isa, int64_t q, int64_t latent, int64_t y, int64_t heads, int64_t kv_lora, int64_t rope,
                    const CacheView& cache, float scale, int64_t window, int threads);
  // The same function of the head's own queries: q [tokens, heads * (nope + rope)] -> y [tokens, heads * v].
  int mla_decompressed(Isa isa, MlaExpansion w, int64_t q, int64_t latent, int64_t y, int64_t kv_lora, int64_t rope,
                       const CacheView& cache, float scale, int64_t window, int threads);
  int silu_mul(Isa isa, int64_t gate, int64_t up, int64_t y, int64_t n, int threads);
  int add(Isa isa, int64_t a, int64_t b, int64_t y, int64_t d, int threads);
  // y = a + sigmoid(h . weight) * b, row by row of d.
  int gated_add(Isa isa, int64_t a, int64_t b, int64_t h, std::vector<float> weight, int64_t y, int64_t d, int threads);
  int take_last(Isa isa, int64_t x, int64_t y, int64_t d, int threads);
  // x [tokens, heads * (k + tail)] -> y [tokens, heads * (n + tail)]; the tail of each head's vector passes through.
  int head_linear(Isa isa, std::vector<PackedMatrix> w, int64_t x, int64_t y, int64_t tail, int threads);
  int moe_router(Isa isa, const PackedMatrix& w, int64_t x, int64_t ids, int64_t weights, RouterOptions options,
                 int threads);
  int moe_experts(Isa isa, std::vector<PackedMatrix> gate, std::vector<PackedMatrix> up,
                  std::vector<PackedMatrix> down, int64_t x, int64_t ids, int64_t weights, int64_t y, int64_t top_k,
                  ExpertOptions options, int threads);

  // Replays all steps. Throws std::invalid_argument before anything is touched when the tokens do not fit (too many,
  // an id outside the vocabulary, spans that are not the tokens, a cache that would overflow). seconds: filled with the
  // time of each step, measured on thread 0 between barriers around it. Throws std::runtime_error in a process forked
  // after the pool was made.
  void run(const RunState& given, std::vector<double>* seconds = nullptr);

  // Kernel parameters of the steps recorded from now on.
  void set_parameters(const BlockValues& block) {
    block_ = block;
    planes_ = static_cast<int>(block[Parameter::activation_planes]);
    parameters_ = matmul_parameters(block);
  }
  const BlockValues& parameters() const { return block_; }

  int n_steps() const { return n_steps_; }
  int n_barriers() const;
  // Threads that share each step; 1 where every thread of a run computes it for itself.
  std::vector<int> step_threads() const;
  int64_t max_tokens() const { return max_tokens_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  struct Stage {
    StageFn fn;
    int threads = 0;
    bool barrier_before = false;
    int step = 0;
  };
  // Quantised rows of a value, shared by all matrices that read it.
  struct ActivationSlot {
    std::shared_ptr<std::vector<ActivationUse>> uses;
    int64_t x = -1;     // arena offset of the value that it holds; -1: none
    Activation base;    // of thread 0, or of everyone
    int64_t bytes = 0;  // of one copy
  };
  // Rows of a value as a matrix reads them.
  struct ActivationRef {
    Operand x;
    Activation base;           // of thread 0, or of everyone
    int64_t stride = 0;        // bytes from a thread's quantised rows to the next one's; 0: shared
    int64_t shared_bytes = 0;  // of the shared quantised rows; 0: none
    Activation at(int thread) const;
    std::vector<Access> accesses() const;
  };
  struct RopeTable {
    std::vector<float> inv_freq;
    float attn_factor = 1;
    float* cosine = nullptr;  // [threads or 1][max_tokens][d / 2]; the sines follow
    int64_t floats_per_thread = 0;
    bool own = false;
  };
  struct AttentionShape;

  int begin_step() { return n_steps_++; }
  // Either kind of output, by size.
  Operand output(int64_t offset, int64_t rows, int64_t width, const char* name);
  static void land(const Operand& replica, const RunState& s);
  int stage_threads(int threads) const;
  void add_stage(StageFn fn, const std::vector<Access>& accesses, int threads);
  // For a stage that is recorded now.
  std::shared_ptr<Partition> make_partition(int threads) const;
  uint8_t* scratch(int64_t n_bytes);
  // Scratch that holds nothing from step to step: steps that ask for the same name and size get the same.
  uint8_t* shared_scratch(const char* name, int64_t n_bytes);
  // Small enough to compute on every thread instead of sharing it.
  bool small(int64_t elements) const;
  // The place of [rows, width] of four bytes at `offset`; throws where that is not inside the arena.
  Operand place(int64_t offset, int64_t rows, int64_t width, const char* name) const;
  // The value there, as a step reads it.
  Operand value(int64_t offset, int64_t rows, int64_t width, const char* name);
  // The same as an output: what overlapped it is gone.
  Operand shared_output(int64_t offset, int64_t rows, int64_t width, const char* name);
  Operand replicated_output(int64_t offset, int64_t rows, int64_t width, const char* name);
  // Nobody else touches a replicated operand; a shared one is touched as `split` says.
  static Access reads(const Operand& x, Split split = {});
  static Access writes(const Operand& y, Split split = {});

  // fn(thread, row range) over token rows: on every thread when small, else split.
  using RowsFn = std::function<void(int thread, int64_t begin, int64_t end, const RunState&)>;
  void add_rows(const std::vector<Operand>& inputs, const Operand& y, int64_t row_bytes, bool one_row, int threads,
                RowsFn fn);
  // The rows of `x` in all forms that `uses` read; those of other steps on the same value are added.
  ActivationRef activation(Isa isa, int64_t x, int64_t rows, int64_t k,
                           const std::vector<ActivationUse>& uses, bool allow_own, int threads);
  void add_matmul(Isa isa, const PackedMatrix& w, const ActivationRef& x, const Operand& y, std::vector<float> bias,
                  bool one_row, int threads);
  const RopeTable& rope_table(std::vector<float> inv_freq, float attn_factor, bool own, int threads);
  // Runs throw where the cache has no room for their tokens.
  void check_room(const CacheView& cache, int64_t window);
  // Throws unless the spans are the run's tokens, one after the other; fills in their rows.
  void check_spans(const RunState& state, std::vector<Span>* spans) const;
  void add_attention(const AttentionShape& shape, Isa isa, const Operand& q, int64_t y, int threads);

  ThreadPool& pool_;
  uint8_t* arena_;
  int64_t arena_bytes_;
  int64_t max_tokens_;
  int64_t max_spans_;
  int n_threads_;
  int n_steps_ = 0;
  BlockValues block_;
  int planes_ = static_cast<int>(block_[Parameter::activation_planes]);  // see matmul_table.h
  MatmulParameters parameters_ = matmul_parameters(block_);
  std::vector<Stage> stages_;
  Hazards hazards_;
  std::vector<AlignedBuffer> buffers_;
  int64_t scratch_bytes_ = 0;
  std::map<std::pair<std::string, int64_t>, uint8_t*> shared_scratch_;
  std::map<std::pair<int64_t, int64_t>, Operand> replicas_;  // (offset, bytes) -> the copies, valid or not
  std::map<std::pair<int64_t, int64_t>, bool> replicated_;   // valid now
  std::map<std::string, ActivationSlot> slots_;
  std::vector<std::unique_ptr<RopeTable>> rope_tables_;
  std::vector<std::function<void(const RunState&)>> checks_;  // throw before a run
  std::atomic<bool> bad_expert_{false};
  Barrier barrier_;
  std::mutex run_mutex_;     // replays share the scratch
  std::vector<Span> spans_;  // of the run; kept, so that one allocates nothing
  uint32_t run_ = 0;      // counts them
  std::atomic<int> runs_{0};  // running, or waiting for their turn
};

// y = x W^T + bias for this lane's share of tiles and tokens.
void matmul_share(const MatmulTable& table, const PackedMatrix& w, const Activation& x, int64_t tokens,
                  const Lane& lane, Partition& partition, uint32_t run, const float* bias, float* y, int64_t ldy,
                  const MatmulParameters& p);

}  // namespace kbench
