#include "probes.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>

#include "barrier.h"
#include "partition.h"
#include "probe_table.h"

namespace kbench {
namespace {

using Clock = std::chrono::steady_clock;

// A pass must be long against the clock's tick and the start of the threads (microseconds).
constexpr double kPassSeconds = 2e-3;
// A probe of less finds no steady clock frequency, one of more is a mistake in the unit.
constexpr double kMinSeconds = 1e-3, kMaxSeconds = 60;
constexpr int64_t kMaxProbeBytes = int64_t{64} << 30;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kReadMultiple = 256;

void check_seconds(double seconds) {
  if (!(seconds >= kMinSeconds && seconds <= kMaxSeconds)) {
    throw std::invalid_argument("seconds is " + std::to_string(seconds) + "; accepted: 0.001 to 60");
  }
}

void fill(ProbeTable& table, Isa isa) {
  if (isa != Isa::scalar) fill(table, isa_parent(isa));
  switch (isa) {
    case Isa::scalar: fill_probe_table_scalar(table); break;
#if defined(__x86_64__)
    case Isa::avx2: fill_probe_table_avx2(table); break;
    case Isa::avx_vnni: fill_probe_table_avx_vnni(table); break;
    case Isa::avx512: fill_probe_table_avx512(table); break;
    case Isa::avx512_vnni: fill_probe_table_avx512_vnni(table); break;
    case Isa::avx512_bf16: fill_probe_table_avx512_bf16(table); break;
    case Isa::amx: fill_probe_table_amx(table); break;
#endif
    default: break;
  }
}

ProbeTable probe_table(Isa isa) {
  ProbeTable table;
  fill(table, isa);
  return table;
}

Isa best_isa() {
  for (int i = kIsaCount - 1; i > 0; --i) {
    if (*isa_missing(static_cast<Isa>(i)) == '\0') return static_cast<Isa>(i);
  }
  return Isa::scalar;
}

// Seconds of one pass of `body` on all threads, from a common start to the last one's end.
double pass_seconds(ThreadPool& pool, Barrier& barrier, const std::function<void(int, int)>& body) {
  double seconds = 0;
  pool.run([&](int thread, int n_threads) {
    barrier.wait(thread, n_threads);
    const auto begin = Clock::now();
    body(thread, n_threads);
    barrier.wait(thread, n_threads);
    if (thread == 0) seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  });
  return seconds;
}

}  // namespace

std::vector<double> read_rates(ThreadPool& pool, int64_t n_bytes, double seconds) {
  check_seconds(seconds);
  const int64_t least = 4096 * static_cast<int64_t>(pool.threads());
  if (n_bytes < least || n_bytes > kMaxProbeBytes) {
    throw std::invalid_argument("n_bytes is " + std::to_string(n_bytes) + "; accepted: " + std::to_string(least) +
                                " (a page a thread) to " + std::to_string(kMaxProbeBytes));
  }
  const int64_t lines = n_bytes / kReadMultiple;
  void* memory = nullptr;
  if (posix_memalign(&memory, kHugePage, static_cast<size_t>(lines * kReadMultiple)) != 0) throw std::bad_alloc();
  const std::unique_ptr<uint8_t, void (*)(void*)> data(static_cast<uint8_t*>(memory), std::free);
#ifdef MADV_HUGEPAGE
  madvise(memory, static_cast<size_t>(lines * kReadMultiple), MADV_HUGEPAGE);  // a wish: small pages work too
#endif
  const ReadFn read = probe_table(best_isa()).read;
  // Each thread writes its share first: pages that were never written are all one zero page, which a cache holds.
  pool.run([&](int thread, int n_threads) {
    const Range part = share(lines, thread, n_threads);
    std::memset(data.get() + part.begin * kReadMultiple, 1 + thread % 7,
                static_cast<size_t>((part.end - part.begin) * kReadMultiple));
  });
  Barrier barrier(pool.threads());
  std::atomic<uint64_t> sink{0};
  std::vector<double> rates;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const double taken = pass_seconds(pool, barrier, [&](int thread, int n_threads) {
      const Range part = share(lines, thread, n_threads);
      sink += read(data.get() + part.begin * kReadMultiple, (part.end - part.begin) * kReadMultiple);
    });
    rates.push_back(static_cast<double>(lines * kReadMultiple) / taken);
  } while (Clock::now() < end);
  return rates;
}

double read_bandwidth(ThreadPool& pool, int64_t n_bytes, double seconds) {
  const std::vector<double> rates = read_rates(pool, n_bytes, seconds);
  return *std::max_element(rates.begin(), rates.end());
}

double arithmetic_peak(ThreadPool& pool, Isa isa, const std::string& kind, double seconds) {
  check_seconds(seconds);
  const ProbeTable table = probe_table(isa);
  PeakFn peak = nullptr;
  if (kind == "f32") {
    peak = table.f32;
  } else if (kind == "int8") {
    peak = table.int8;
  } else if (kind == "bf16") {
    peak = table.bf16;
  } else {
    throw std::invalid_argument("unknown kind '" + kind + "', accepted: int8, f32, bf16");
  }
  if (peak == nullptr)
    throw std::invalid_argument(kind + " is unsupported: " + isa_name(isa) + " has no such arithmetic");
  Barrier barrier(pool.threads());
  std::atomic<int64_t> operations{0};
  std::atomic<float> sink{0};
  int64_t rounds = 1024;
  double best = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    operations = 0;
    const double taken = pass_seconds(pool, barrier, [&](int, int) {
      float result = 0;
      operations += peak(rounds, &result);
      sink = result;
    });
    if (taken < kPassSeconds) {
      rounds *= 2;
      continue;  // too short to count
    }
    best = std::max(best, static_cast<double>(operations) / taken);
  } while (best == 0 || Clock::now() < end);
  return best;
}

}  // namespace kbench
