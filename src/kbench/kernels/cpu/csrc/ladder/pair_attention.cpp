// A pair beside the ladder: how threads share the attention of one new token over a long cache.
//
//   whole heads   a thread takes whole key/value heads, each with the query heads that share it. With 3 heads on 2
//                 threads one thread has twice as much to do as the other; with 1 head all but one look on.
//   split KV      each head's cache is cut into as many parts as there are threads, and every thread takes one part of
//                 every head. A part's result is a weighted mean with its own largest score and weight, and partial
//                 results are put together afterwards, rescaled to the largest score of all (Flash-Decoding).
//
//   cache of one head   [ position 0 ...... | ...... | ......  newest ]
//                         thread 0            1        2
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../pool.h"
#include "several_sums.h"
#include "steps.h"

namespace kbench::ladder {
namespace {

// The attention of one query head over some positions, not yet divided by `weight`.
struct Partial {
  float largest = -std::numeric_limits<float>::infinity();  // of the scores
  float weight = 0.0f;                                      // sum of exp(score - largest)
  std::vector<float> sum;                                   // of exp(score - largest) * value
};

void append(const Attention& call) {
  for (int64_t h = 0; h < call.kv_heads; ++h) {
    const int64_t at = (h * call.capacity + call.position) * call.d;
    std::memcpy(call.k_cache + at, call.k + h * call.d, static_cast<size_t>(call.d) * sizeof(float));
    std::memcpy(call.v_cache + at, call.v + h * call.d, static_cast<size_t>(call.d) * sizeof(float));
  }
}

Partial attend(const Attention& call, int64_t head, int64_t begin, int64_t end) {
  const int64_t kv_head = head / (call.heads / call.kv_heads);
  const float* keys = call.k_cache + kv_head * call.capacity * call.d;
  const float* values = call.v_cache + kv_head * call.capacity * call.d;
  Partial part;
  part.sum.assign(static_cast<size_t>(call.d), 0.0f);
  std::vector<float> scores(static_cast<size_t>(end - begin));
  for (int64_t p = begin; p < end; ++p) {
    const float score = call.scale * dot(call.q + head * call.d, keys + p * call.d, call.d);
    scores[static_cast<size_t>(p - begin)] = score;
    part.largest = std::max(part.largest, score);
  }
  for (int64_t p = begin; p < end; ++p) {
    const float weight = std::exp(scores[static_cast<size_t>(p - begin)] - part.largest);
    part.weight += weight;
    for (int64_t i = 0; i < call.d; ++i) part.sum[static_cast<size_t>(i)] += weight * values[p * call.d + i];
  }
  return part;
}

// The parts of a head put together and divided by their weight.
void finish(const Partial* parts, int64_t n_parts, float* y, int64_t d) {
  float largest = parts[0].largest;
  for (int64_t i = 1; i < n_parts; ++i) largest = std::max(largest, parts[i].largest);
  float weight = 0.0f;
  std::fill(y, y + d, 0.0f);
  for (int64_t p = 0; p < n_parts; ++p) {
    if (parts[p].weight == 0.0f) continue;  // a part without positions
    const float rescale = std::exp(parts[p].largest - largest);
    weight += rescale * parts[p].weight;
    for (int64_t i = 0; i < d; ++i) y[i] += rescale * parts[p].sum[static_cast<size_t>(i)];
  }
  for (int64_t i = 0; i < d; ++i) y[i] /= weight;
}

}  // namespace

void whole_heads(const Attention& call, ThreadPool& pool) {
  append(call);
  const int64_t group = call.heads / call.kv_heads;
  pool.run([&](int thread, int n_threads) {
    const int64_t begin = call.kv_heads * thread / n_threads * group;
    const int64_t end = call.kv_heads * (thread + 1) / n_threads * group;
    for (int64_t head = begin; head < end; ++head) {
      const Partial whole = attend(call, head, 0, call.position + 1);
      finish(&whole, 1, call.y + head * call.d, call.d);
    }
  });
}

void split_kv(const Attention& call, ThreadPool& pool) {
  append(call);
  const int64_t n_parts = pool.threads(), length = call.position + 1;
  std::vector<Partial> parts(static_cast<size_t>(call.heads * n_parts));
  pool.run([&](int thread, int n_threads) {
    for (int64_t head = 0; head < call.heads; ++head) {
      parts[static_cast<size_t>(head * n_parts + thread)] =
          attend(call, head, length * thread / n_threads, length * (thread + 1) / n_threads);
    }
  });
  for (int64_t head = 0; head < call.heads; ++head) {
    finish(&parts[static_cast<size_t>(head * n_parts)], n_parts, call.y + head * call.d, call.d);
  }
}

}  // namespace kbench::ladder
