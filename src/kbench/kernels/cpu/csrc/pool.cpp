#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "barrier.h"

namespace kbench {
namespace {

// How long a thread without work spins before it parks. Waking a parked thread costs 5 to 50 microseconds (futex,
// scheduler, a core leaving its sleep state); between two regions of one decode loop lie a few microseconds of Python
// and sampling. Spinning about as long as a wake-up costs is at most twice as bad as knowing the future, and short
// enough that threads of another runtime in the process (OpenMP) find their cores free.
constexpr std::chrono::microseconds kSpin{50};
// The clock is read once in so many pauses: reading it costs about as much as a pause.
constexpr int kPausesPerClockRead = 32;

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // over CPU_SETSIZE processors: run unpinned
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// What identifies the physical core of `cpu`: the kernel's list of its SMT siblings.
std::string core_of(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  std::string siblings;
  if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
  return siblings;
}

// One processor of each physical core first, then the siblings. Returns the number of cores.
int order_by_core(std::vector<int>& cpus) {
  std::set<std::string> cores;
  std::vector<int> firsts, siblings;
  for (int cpu : cpus) (cores.insert(core_of(cpu)).second ? firsts : siblings).push_back(cpu);
  const int n_cores = static_cast<int>(firsts.size());
  firsts.insert(firsts.end(), siblings.begin(), siblings.end());
  cpus = firsts;
  return n_cores;
}

void pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // failing only costs speed
}

// Moves the calling thread to its own processor while a region runs, where it would otherwise share one with a worker,
// and gives it its own mask back. Changing masks takes 6 microseconds, ten times what starting a region takes, so it is
// done only when needed: once moved, the scheduler leaves a thread where it is.
class CallerPin {
 public:
  explicit CallerPin(int cpu) {
    pinned_ = cpu >= 0 && sched_getaffinity(0, sizeof saved_, &saved_) == 0;
    if (pinned_) pin_this_thread(cpu);
  }
  ~CallerPin() {
    if (pinned_) sched_setaffinity(0, sizeof saved_, &saved_);
  }

 private:
  cpu_set_t saved_;
  bool pinned_ = false;
};

}  // namespace

struct ThreadPool::State {
  std::vector<int> cpus;
  std::vector<bool> of_workers;  // by processor: on a core where a worker is pinned
  std::vector<std::thread> workers;
  pid_t pid = 0;

  std::mutex run_mutex;                   // one region at a time
  std::atomic<std::thread::id> runner{};  // whose region it is

  // (regions so far << 16) | threads taking part. One word, so that a thread that sits a region out never reads a
  // count that belongs to another one.
  alignas(kCacheLine) std::atomic<uint64_t> ticket{0};
  alignas(kCacheLine) std::atomic<int> unfinished{0};
  alignas(kCacheLine) std::atomic<int> parked{0};
  const Body* body = nullptr;  // written before ticket, read after it
  std::atomic<bool> stopping{false};
  std::mutex park_mutex;
  std::condition_variable wake;
  std::mutex error_mutex;
  std::exception_ptr error;

  bool called(int thread, uint64_t seen) const {
    const uint64_t now = ticket.load(std::memory_order_seq_cst);
    return now != seen && static_cast<uint64_t>(thread) < (now & 0xffff);
  }

  void wait_for_work(int thread, uint64_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        if (called(thread, seen) || stopping.load(std::memory_order_acquire)) return;
        spin_pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
    std::unique_lock<std::mutex> lock(park_mutex);
    // Sequentially consistent with run()'s "write ticket, read parked": one of the two sees the other.
    parked.fetch_add(1, std::memory_order_seq_cst);
    wake.wait(lock, [&] { return called(thread, seen) || stopping.load(std::memory_order_acquire); });
    parked.fetch_sub(1, std::memory_order_seq_cst);
  }

  void call(int thread, int n_threads) {
    try {
      (*body)(thread, n_threads);
    } catch (...) {
      std::lock_guard<std::mutex> lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int thread) {
    if (cpus[static_cast<size_t>(thread)] >= 0) pin_this_thread(cpus[static_cast<size_t>(thread)]);
    for (uint64_t seen = 0;;) {
      wait_for_work(thread, seen);
      if (!called(thread, seen)) return;  // stopping
      seen = ticket.load(std::memory_order_acquire);
      call(thread, static_cast<int>(seen & 0xffff));
      unfinished.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus) : state_(nullptr) {
  if (threads < 0 || threads > kMaxThreads) {
    throw std::invalid_argument("a pool of " + std::to_string(threads) + " threads; accepted: 0 (one per core) to " +
                                std::to_string(kMaxThreads));
  }
  std::vector<int> usable = allowed_cpus();
  int n_cores = static_cast<int>(usable.size());
  if (cpus.empty()) {
    n_cores = order_by_core(usable);
  } else {
    for (int cpu : cpus) {
      if (std::find(usable.begin(), usable.end(), cpu) == usable.end()) {
        throw std::invalid_argument("processor " + std::to_string(cpu) + " is not in this process's affinity mask");
      }
    }
    usable = cpus;
    n_cores = static_cast<int>(usable.size());
  }
  const int n = threads > 0 ? threads : std::max(1, n_cores);
  auto state = std::make_unique<State>();
  // A single thread has nobody to collide with: leave it to the scheduler.
  state->cpus.assign(static_cast<size_t>(n), -1);
  if (n > 1) std::copy_n(usable.begin(), std::min<size_t>(usable.size(), static_cast<size_t>(n)), state->cpus.begin());
  // More threads than processors: a pinned caller would share its processor with threads that may go elsewhere.
  if (static_cast<size_t>(n) > usable.size()) std::fill(state->cpus.begin(), state->cpus.end(), -1);
  std::set<std::string> worker_cores;
  for (size_t t = 1; t < state->cpus.size(); ++t) {
    if (state->cpus[t] >= 0) worker_cores.insert(core_of(state->cpus[t]));
  }
  for (int cpu : allowed_cpus()) {
    if (worker_cores.count(core_of(cpu)) == 0) continue;
    if (state->of_workers.size() <= static_cast<size_t>(cpu)) state->of_workers.resize(static_cast<size_t>(cpu) + 1);
    state->of_workers[static_cast<size_t>(cpu)] = true;
  }
  state->pid = getpid();
  state_ = state.get();
  try {
    state->workers.reserve(static_cast<size_t>(n - 1));
    for (int t = 1; t < n; ++t) state->workers.emplace_back([s = state_, t] { s->work(t); });
  } catch (...) {  // the system has no more threads
    {
      std::lock_guard<std::mutex> lock(state->park_mutex);
      state->stopping.store(true);
    }
    state->wake.notify_all();
    for (auto& worker : state->workers) worker.join();
    throw;
  }
  state.release();
}

ThreadPool::~ThreadPool() {
  // In a forked child the workers do not exist, and destroying a condition variable that they waited on would hang:
  // the child leaves this memory alone.
  if (getpid() != state_->pid) return;
  {
    std::lock_guard<std::mutex> lock(state_->park_mutex);
    state_->stopping.store(true);
  }
  state_->wake.notify_all();
  for (auto& worker : state_->workers) worker.join();
  delete state_;
}

int ThreadPool::threads() const {
  return static_cast<int>(state_->cpus.size());
}

const std::vector<int>& ThreadPool::cpus() const {
  return state_->cpus;
}

void ThreadPool::run(int n_threads, const Body& body) {
  State& s = *state_;
  if (n_threads < 1 || n_threads > threads()) {
    throw std::invalid_argument(std::to_string(n_threads) + " threads asked of a pool of " + std::to_string(threads()));
  }
  if (getpid() != s.pid) {
    throw std::runtime_error(
        "this thread pool was made before fork(): its threads do not exist in the child process; "
        "make a new pool there, or start processes with the spawn method");
  }
  if (s.runner.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    throw std::runtime_error("a pool's run() was called from inside its own parallel region");
  }
  std::lock_guard<std::mutex> turn(s.run_mutex);
  s.runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (n_threads == 1) {
    s.body = &body;
    s.call(0, 1);
  } else {
    const int here = sched_getcpu();
    const bool shared =
        here >= 0 && static_cast<size_t>(here) < s.of_workers.size() && s.of_workers[static_cast<size_t>(here)];
    CallerPin pin(shared ? s.cpus[0] : -1);
    s.body = &body;
    s.unfinished.store(n_threads - 1, std::memory_order_relaxed);
    const uint64_t regions = (s.ticket.load(std::memory_order_relaxed) >> 16) + 1;
    s.ticket.store(regions << 16 | static_cast<uint64_t>(n_threads), std::memory_order_seq_cst);
    if (s.parked.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(s.park_mutex);
      s.wake.notify_all();
    }
    s.call(0, n_threads);
    for (int pauses = 0; s.unfinished.load(std::memory_order_acquire) != 0; ++pauses) {
      if (pauses < kPausesBeforeYield) {
        spin_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
  s.runner.store(std::thread::id(), std::memory_order_relaxed);
  std::exception_ptr error;
  std::swap(error, s.error);
  if (error) std::rethrow_exception(error);
}

}  // namespace kbench
