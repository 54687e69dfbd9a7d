// A persistent pool of pinned threads. Thread 0 is the caller of run(), so a pool of n starts n - 1 threads.
#pragma once
#include <functional>
#include <memory>
#include <vector>

namespace kbench {

class ThreadPool {
 public:
  using Body = std::function<void(int thread, int n_threads)>;

  // threads: how many, the caller included. Which processors they are pinned to: see place_threads().
  // node: the memory node to stay on; -1: all.
  // Throws std::invalid_argument for a count below 1 or above kMaxThreads, or a node without allowed processors.
  explicit ThreadPool(int threads, int node = -1);
  // Thread t is pinned to cpus[t]; threads beyond the list: none is pinned.
  // Throws std::invalid_argument for a processor that is not allowed as well.
  ThreadPool(int threads, const std::vector<int>& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // The processor of each thread, -1 where it is not pinned.
  const std::vector<int>& cpus() const;

  // Throws std::runtime_error in a process that was forked after the pool was made: its threads do not exist there.
  void check_process() const;

  // Calls body(thread, n_threads) once on each thread and returns when all have returned. The first exception that
  // leaves a body is thrown here (a body that uses a Barrier must not throw: the others would wait forever).
  // Callers from several threads take turns. Throws std::runtime_error when called from inside a body, and as
  // check_process() does.
  void run(const Body& body) { run(threads(), body); }
  // The same on threads 0..n_threads-1 only. The others are left asleep.
  void run(int n_threads, const Body& body);

 private:
  struct State;
  void start(int threads, std::vector<int> cpus);
  State* state_ = nullptr;
};

// More threads than any machine has cores: a guard against nonsense such as a size passed as a count.
constexpr int kMaxThreads = 1024;

}  // namespace kbench
