#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "topology.h"
#include "waitable.h"

namespace kbench {
namespace {

// Tells the threads to end; no region has this number.
constexpr uint64_t kStop = UINT64_MAX;

void pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // failing only costs speed
}

// Moves the calling thread to its own processor while a region runs, where it would otherwise share one with a worker
// or be far from its memory, and gives it its own mask back. Changing masks takes 6 microseconds, ten times what
// starting a region takes, so it is done only when needed: once moved, the scheduler leaves a thread where it is.
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

// Sleeping threads are woken by groups of doubling size, a bit each: thread 1, 2 to 3, 4 to 7 ..., so that a region of
// few threads of a big pool leaves most of the others asleep.
uint32_t group_of(int thread) {
  uint32_t bit = 1;
  for (int t = thread; t > 1; t /= 2) bit <<= 1;
  return bit;
}
uint32_t groups_below(int n_threads) {
  return 2 * group_of(n_threads - 1) - 1;
}

void check_count(int threads) {
  if (threads >= 1 && threads <= kMaxThreads) return;
  throw std::invalid_argument("a pool of " + std::to_string(threads) + " threads; accepted: 1 to " +
                              std::to_string(kMaxThreads));
}

}  // namespace

struct ThreadPool::State {
  std::vector<int> cpus;
  std::vector<bool> move_caller;  // by processor: one that the caller should leave
  std::vector<std::thread> workers;
  pid_t pid = 0;

  std::mutex run_mutex;                   // one region at a time
  std::atomic<std::thread::id> runner{};  // whose region it is

  // (regions so far << 16) | threads taking part. One word, so that a thread that sits a region out never reads a
  // count that belongs to another one.
  Waitable ticket;
  std::unique_ptr<Waitable[]> finished;  // by thread: the last region that it has left
  const Body* body = nullptr;            // written before ticket, read after it
  std::mutex error_mutex;
  std::exception_ptr error;

  void call(int thread, int n_threads) {
    try {
      (*body)(thread, n_threads);
    } catch (...) {
      std::lock_guard<std::mutex> lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int thread) {
    const auto t = static_cast<size_t>(thread);
    if (cpus[t] >= 0) pin_this_thread(cpus[t]);
    for (uint64_t seen = 0;;) {
      const uint64_t now = ticket.wait(
          [thread, seen](uint64_t ticket) {
            return ticket != seen && static_cast<uint64_t>(thread) < (ticket & 0xffff);
          },
          group_of(thread));
      if (now == kStop) return;
      seen = now;
      call(thread, static_cast<int>(seen & 0xffff));
      finished[t].store(seen >> 16);
    }
  }

  void stop() {
    ticket.store(kStop);
    for (auto& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads, int node) {
  check_count(threads);
  start(threads, place_threads(threads, allowed_cpus(), node));
}

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus) {
  check_count(threads);
  const std::vector<int> allowed = allowed_cpus();
  for (int cpu : cpus) {
    if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
      throw std::invalid_argument("processor " + std::to_string(cpu) + " is not in this process's affinity mask");
    }
  }
  start(threads, cpus);
}

void ThreadPool::start(int threads, std::vector<int> cpus) {
  const auto n = static_cast<size_t>(threads);
  // More threads than processors: a pinned one would share its processor with threads that may go elsewhere.
  if (cpus.size() < n) cpus.assign(n, -1);
  cpus.resize(n);
  auto state = std::make_unique<State>();
  state->cpus = std::move(cpus);
  std::set<std::string> worker_cores;
  for (size_t t = 1; t < n; ++t) {
    if (state->cpus[t] >= 0) worker_cores.insert(core_of(state->cpus[t]));
  }
  const std::vector<MemoryNode> nodes = memory_nodes();
  const auto node_of = [&nodes](int cpu) {
    for (const MemoryNode& node : nodes) {
      if (std::find(node.cpus.begin(), node.cpus.end(), cpu) != node.cpus.end()) return node.id;
    }
    return -1;
  };
  for (int cpu : state->cpus[0] >= 0 ? allowed_cpus() : std::vector<int>()) {
    if (worker_cores.count(core_of(cpu)) == 0 && node_of(cpu) == node_of(state->cpus[0])) continue;
    if (state->move_caller.size() <= static_cast<size_t>(cpu)) state->move_caller.resize(static_cast<size_t>(cpu) + 1);
    state->move_caller[static_cast<size_t>(cpu)] = true;
  }
  state->pid = getpid();
  state->finished.reset(new Waitable[n]);
  state->workers.reserve(n - 1);
  try {
    for (int t = 1; t < threads; ++t) state->workers.emplace_back([s = state.get(), t] { s->work(t); });
  } catch (...) {  // the system has no more threads
    state->stop();
    throw;
  }
  state_ = state.release();
}

ThreadPool::~ThreadPool() {
  // In a forked child the workers do not exist and cannot be joined: the child leaves this memory alone.
  if (getpid() != state_->pid) return;
  state_->stop();
  delete state_;
}

int ThreadPool::threads() const {
  return static_cast<int>(state_->cpus.size());
}

const std::vector<int>& ThreadPool::cpus() const {
  return state_->cpus;
}

void ThreadPool::check_process() const {
  if (getpid() == state_->pid) return;
  throw std::runtime_error(
      "this thread pool was made before fork(): its threads do not exist in the child process; "
      "make a new pool there, or start processes with the spawn method");
}

void ThreadPool::run(int n_threads, const Body& body) {
  State& s = *state_;
  if (n_threads < 1 || n_threads > threads()) {
    throw std::invalid_argument(std::to_string(n_threads) + " threads asked of a pool of " + std::to_string(threads()));
  }
  check_process();
  if (s.runner.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    throw std::runtime_error("a pool's run() was called from inside its own parallel region");
  }
  std::lock_guard<std::mutex> turn(s.run_mutex);
  s.runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
  {
    const int here = s.move_caller.empty() ? -1 : sched_getcpu();
    const bool move =
        here >= 0 && static_cast<size_t>(here) < s.move_caller.size() && s.move_caller[static_cast<size_t>(here)];
    CallerPin pin(move ? s.cpus[0] : -1);
    s.body = &body;
    if (n_threads == 1) {
      s.call(0, 1);
    } else {
      const uint64_t region = (s.ticket.load() >> 16) + 1;
      s.ticket.store(region << 16 | static_cast<uint64_t>(n_threads), groups_below(n_threads));
      s.call(0, n_threads);
      for (int t = 1; t < n_threads; ++t) {
        s.finished[static_cast<size_t>(t)].wait([region](uint64_t left) { return left == region; });
      }
    }
  }
  s.runner.store(std::thread::id(), std::memory_order_relaxed);
  std::exception_ptr error;
  std::swap(error, s.error);
  if (error) std::rethrow_exception(error);
}

}  // namespace kbench
