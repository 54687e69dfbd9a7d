// The steps by name, with what each changes against the one before.
#pragma once
#include <string>
#include <vector>

#include "ladder.h"

namespace kbench::ladder {

// The attention of one token, appended at `position` of a cache of `capacity` positions, over all so far.
struct Attention {
  const float* q;                  // [heads][d]
  const float *k, *v;              // [kv_heads][d], of the new token
  float *k_cache, *v_cache;        // [kv_heads][capacity][d]
  float* y;                        // [heads][d]
  int64_t heads, kv_heads, d, capacity, position;
  float scale;
};

// The top_k largest of `vocab` logits, largest first.
struct TopLogits {
  const float* logits;
  int32_t* ids;
  float* values;
  int64_t vocab, top_k;
};

void naive(const Linear& call, ThreadPool& pool);
void reordered(const Linear& call, ThreadPool& pool);
void several_sums(const Linear& call, ThreadPool& pool);
void blocked(const Linear& call, ThreadPool& pool);
void parallel_static(const Linear& call, ThreadPool& pool);
void parallel_dynamic(const Linear& call, ThreadPool& pool);
void dequantise_then_multiply(const Linear& call, ThreadPool& pool);
void fused(const Linear& call, ThreadPool& pool);
void fp16_table(const Linear& call, ThreadPool& pool);
void int8_activations(const Linear& call, ThreadPool& pool);
void avx2(const Linear& call, ThreadPool& pool);
void aligned(const Linear& call, ThreadPool& pool);
void prefetched(const Linear& call, ThreadPool& pool);
void vnni(const Linear& call, ThreadPool& pool);

void whole_heads(const Attention& call, ThreadPool& pool);
void split_kv(const Attention& call, ThreadPool& pool);

void full_sort(const TopLogits& call);
void partial_sort(const TopLogits& call);

// Q8_0 blocks sorted into quants [n][k] and scales [n][k / 32]; `out` has aligned_bytes(n, k) bytes.
void align(const BlockQ8_0* blocks, int64_t n, int64_t k, uint8_t* out, ThreadPool& pool);
inline int64_t aligned_bytes(int64_t n, int64_t k) { return n * k + n * (k / kBlock) * int64_t{2}; }

// A step of the ladder proper.
struct Step {
  const char* name;
  const char* change;  // against the step before
  const char* isa;     // what it needs; "scalar": nothing
  bool q8_0;           // weights in Q8_0; else floats
  bool aligned;        // ... as `align` sorts them
  bool int8;           // activations rounded to int8
  bool scratch;        // wants room for the weights as floats
  void (*run)(const Linear& call, ThreadPool& pool);  // null where the code is for other processors
};

const std::vector<Step>& steps();
// Throws std::invalid_argument.
const Step& step_from_name(const std::string& name);

}  // namespace kbench::ladder
