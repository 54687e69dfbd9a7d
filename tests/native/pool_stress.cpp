// The pool, the barrier and programs under ThreadSanitizer: every kind of step, small (replicated values) and large
// (shared rows), repeated from a pool that parks in between. Build and run: tests/native/run_tsan.sh
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "barrier.h"
#include "owned_matrix.h"
#include "partition.h"
#include "pool.h"
#include "program.h"

using namespace kbench;

namespace {

constexpr int64_t kD = 96, kFfn = 160, kHeads = 6, kKvHeads = 2, kHead = 16, kVocab = 40, kExperts = 4, kTopK = 2;
constexpr int64_t kCapacity = 128, kLatent = 32, kRope = 8;

OwnedMatrix random_matrix(int64_t n, int64_t k, std::mt19937& rng) {
  std::vector<float> w(static_cast<size_t>(n * k));
  for (float& x : w) x = std::normal_distribution<float>(0, 0.1f)(rng);
  OwnedMatrix matrix(Format::F32, n, k);
  pack_tiles(Format::F32, reinterpret_cast<const uint8_t*>(w.data()), n, k, matrix.view().data, 0,
             matrix.view().tiles());
  return matrix;
}

struct Values {
  int64_t end = 0, max_tokens;
  explicit Values(int64_t max_tokens) : max_tokens(max_tokens) {}
  int64_t make(int64_t width) {
    const int64_t offset = end;
    end += (width * max_tokens * 4 + 63) / 64 * 64;
    return offset;
  }
};

// Records a layer of each kind and runs it; returns a checksum.
double stress(int threads, int64_t max_tokens, int rounds, Partition::Kind kind) {
  std::mt19937 rng(7);
  ThreadPool pool(threads);
  const OwnedMatrix embedding = random_matrix(kVocab, kD, rng), square = random_matrix(kD, kD, rng);
  const OwnedMatrix kv = random_matrix(kKvHeads * kHead, kD, rng), wide = random_matrix(kFfn, kD, rng);
  const OwnedMatrix down = random_matrix(kD, kFfn, rng), router = random_matrix(kExperts, kD, rng);
  const OwnedMatrix to_latent = random_matrix(kLatent + kRope, kD, rng),
                    head = random_matrix(kLatent + kRope, kHead, rng);
  std::vector<PackedMatrix> gates(kExperts, wide.view()), downs(kExperts, down.view()), heads(kHeads, head.view());
  const std::vector<float> norm(kD, 1.0f), frequencies(kHead / 2, 0.1f);

  Values v(max_tokens);
  const int64_t h = v.make(kD), n = v.make(kD), q = v.make(kD), k = v.make(kKvHeads * kHead),
                w = v.make(kKvHeads * kHead);
  const int64_t a = v.make(kD), o = v.make(kD), gate = v.make(kFfn), up = v.make(kFfn), act = v.make(kFfn);
  const int64_t ids = v.make(kTopK), weights = v.make(kTopK), latent = v.make(kLatent + kRope);
  const int64_t wide_q = v.make(kHeads * (kLatent + kRope)), mla = v.make(kHeads * kLatent), last = v.make(kD);
  AlignedBuffer arena(v.end);
  AlignedBuffer k_cache(2 * kKvHeads * kCapacity * kHead * 2), v_cache(2 * kKvHeads * kCapacity * kHead * 2);
  AlignedBuffer latent_cache(2 * kCapacity * (kLatent + kRope) * 4);

  Program p(pool, arena.data(), v.end, max_tokens, std::min<int64_t>(2, max_tokens));
  BlockValues block;
  block.set(Parameter::partition, static_cast<int64_t>(kind));
  p.set_parameters(block);
  const Isa isa = Isa::scalar;
  p.embedding(isa, embedding.view(), h, 0);
  for (int layer = 0; layer < 2; ++layer) {
    p.rms_norm(isa, h, norm, kD, 1, 1e-5f, n, false, 0, 0);
    p.linear(isa, square.view(), n, q, {}, false, 0);
    p.linear(isa, kv.view(), n, k, {}, false, 0);
    p.linear(isa, kv.view(), n, w, {}, false, threads > 1 ? 2 : 0);
    p.rope(isa, q, q, kHeads, kHead, kHead, layer == 0, frequencies, 1.0f, false, 0);
    p.rope(isa, k, k, kKvHeads, kHead, kHead, layer == 0, frequencies, 1.0f, false, 0);
    p.attention(isa, q, k, w, a, kHeads, kKvHeads, kHead, {k_cache.data(), v_cache.data(), CacheType::f16, kCapacity, 2},
                0.25f, layer == 0 ? 0 : 9, {}, 0);
    p.linear(isa, square.view(), a, o, {}, false, 0);
    p.add(isa, h, o, h, kD, 0);
    p.linear(isa, to_latent.view(), h, latent, {}, false, 0);
    p.head_linear(isa, heads, h, wide_q, 0, 0);
    p.mla_attention(isa, wide_q, latent, mla, kHeads, kLatent, kRope, {latent_cache.data(), nullptr, CacheType::f32, kCapacity, 2},
                    0.2f, 0, 0);
    p.linear(isa, wide.view(), h, gate, {}, false, 0);
    p.linear(isa, wide.view(), h, up, {}, false, 0);
    p.silu_mul(isa, gate, up, act, kFfn, 0);
    p.linear(isa, down.view(), act, o, {}, false, 0);
    p.add(isa, h, o, h, kD, 0);
    RouterOptions options;
    options.top_k = kTopK;
    p.moe_router(isa, router.view(), h, ids, weights, options, 0);
    p.moe_experts(isa, gates, gates, downs, h, ids, weights, o, kTopK, {}, 0);
    p.add(isa, h, o, h, kD, 0);
  }
  p.take_last(isa, h, last, kD, 0);
  p.rms_norm(isa, last, norm, kD, 1, 1e-5f, last, true, 0, 0);

  std::vector<int32_t> tokens(static_cast<size_t>(max_tokens));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % kVocab);
  double sum = 0;
  for (int round = 0; round < rounds; ++round) {
    const int64_t n_tokens = 1 + round % max_tokens;
    std::vector<double> seconds;
    const int64_t position = round % (kCapacity - max_tokens);
    // Every third round has two sequences, where it has two tokens.
    const int64_t second = round % 3 == 0 ? n_tokens / 2 : 0;
    const Span spans[] = {{0, position, n_tokens - second}, {1, position, second}};
    p.run({tokens.data(), n_tokens, spans, second > 0 ? 2 : 1}, round % 5 == 0 ? &seconds : nullptr);
    for (int64_t i = 0; i < kD; ++i) sum += reinterpret_cast<float*>(arena.data() + last)[i];
    if (round % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // long enough to park
  }
  return sum;
}

// Regions of changing size, whose threads meet at barriers where one comes late enough for the others to sleep, and
// pauses long enough for all to sleep between regions. Returns whether each thread saw what the others had written.
bool regions(int threads, int rounds) {
  ThreadPool pool(threads);
  Barrier barrier(threads);
  std::vector<int64_t> written(static_cast<size_t>(threads) * 64), sums(static_cast<size_t>(threads) * 64);
  for (int round = 0; round < rounds; ++round) {
    const int size = 1 + round % threads;
    barrier.reset(size);
    for (int64_t& sum : sums) sum = 0;
    pool.run(size, [&](int thread, int n_threads) {
      for (int stage = 0; stage < 4; ++stage) {
        if (round % 3 == 0 && stage == round % 4 && thread == round % n_threads) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        written[static_cast<size_t>(thread) * 64] = round + stage;
        barrier.wait(thread, n_threads);
        for (int t = 0; t < n_threads; ++t) sums[static_cast<size_t>(thread) * 64] += written[static_cast<size_t>(t) * 64];
        barrier.wait(thread, n_threads);
      }
    });
    for (int t = 0; t < threads; ++t) {
      const int64_t right = t < size ? int64_t{size} * (4 * round + 6) : 0;
      if (sums[static_cast<size_t>(t) * 64] != right) {
        std::printf("region %d of %d threads: thread %d has a sum of %ld, not %ld\n", round, size, t,
                    static_cast<long>(sums[static_cast<size_t>(t) * 64]), static_cast<long>(right));
        return false;
      }
    }
    if (round % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Whether each unit of a stage is made once, whichever lane is late, at the end of the runs' numbers as well.
bool partitions(int threads, Partition::Kind kind) {
  ThreadPool pool(threads);
  Partition partition(kind, threads);
  for (uint32_t run = (1u << 24) - 30; run < (1u << 24) + 120; ++run) {
    const int64_t n = run % 97;
    std::vector<int> made(static_cast<size_t>(n));
    pool.run([&](int thread, int n_threads) {
      if (run % 5 == 0 && thread == static_cast<int>(run / 5) % n_threads) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      Partition::Work work = partition.work({thread, n_threads}, run, n);
      for (Range r; work.next(&r);) {
        for (int64_t i = r.begin; i < r.end; ++i) ++made[static_cast<size_t>(i)];
      }
    });
    for (int64_t i = 0; i < n; ++i) {
      if (made[static_cast<size_t>(i)] == 1) continue;
      std::printf("unit %ld of %ld was made %d times\n", static_cast<long>(i), static_cast<long>(n),
                  made[static_cast<size_t>(i)]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main() {
  constexpr Partition::Kind kKinds[] = {Partition::Kind::fixed, Partition::Kind::dynamic, Partition::Kind::stealing};
  for (const int threads : {1, 2, 5}) {
    for (const Partition::Kind kind : kKinds) {
      if (!partitions(threads, kind)) return 1;
    }
  }
  for (const int threads : {2, 5, 9}) {
    if (!regions(threads, 300)) return 1;
  }
  for (const int64_t max_tokens : {1, 3, 40}) {
    const double one = stress(1, max_tokens, max_tokens == 40 ? 12 : 30, Partition::Kind::fixed);
    for (const int threads : {2, 3, 5}) {
      for (const Partition::Kind kind : kKinds) {
        const double many = stress(threads, max_tokens, max_tokens == 40 ? 12 : 30, kind);
        std::printf("%d tokens, %d threads: %.6f, alone %.6f\n", static_cast<int>(max_tokens), threads, many, one);
        if (!(many - one < 1e-2 && one - many < 1e-2)) return 1;
      }
    }
  }
  return 0;
}
