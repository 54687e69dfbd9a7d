// A persistent pool of pinned threads. Thread 0 is the caller of run(), so a pool of n starts n - 1 threads.
#pragma once
#include <functional>
#include <memory>
#include <vector>

namespace kbench {

class ThreadPool {
 public:
  using Body = std::function<void(int thread, int n_threads)>;

  // threads: how many, the caller included; 0 = one per physical core that this process may run on.
  // cpus: processors to pin to, in order; empty = the process's affinity mask, one per physical core first, then their
  // SMT siblings. Threads beyond the processors at hand are not pinned: the scheduler spreads them best.
  // Throws std::invalid_argument for a negative count or one above kMaxThreads, or a processor that is not allowed.
  explicit ThreadPool(int threads = 0, const std::vector<int>& cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // The processor of each thread, -1 where it is not pinned.
  const std::vector<int>& cpus() const;

  // Calls body(thread, n_threads) once on each thread and returns when all have returned. The first exception that
  // leaves a body is thrown here (a body that uses a Barrier must not throw: the others would wait forever).
  // Callers from several threads take turns. Throws std::runtime_error when called from inside a body, or in a process
  // that was forked after the pool was made, where its threads do not exist.
  void run(const Body& body) { run(threads(), body); }
  // The same on threads 0..n_threads-1 only.
  void run(int n_threads, const Body& body);

 private:
  struct State;
  State* state_;
};

// More threads than any machine has cores: a guard against nonsense such as a size passed as a count.
constexpr int kMaxThreads = 1024;

}  // namespace kbench
