#include "pool.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#include "arithmetic.hpp"

namespace treefold {

namespace {

using Clock = std::chrono::steady_clock;

// How long an idle worker spins before it sleeps: longer than the gap between the small reductions of a training step.
constexpr auto spin_time = std::chrono::microseconds(50);
constexpr auto interrupt_period = std::chrono::milliseconds(20);

std::atomic<Pool*> current{nullptr};
std::mutex making;  // guards the creation of `current`
// The pool whose workers are doing tasks of this thread; null outside of Pool::run.
thread_local Pool* sharing = nullptr;

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

std::size_t usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<std::size_t>(CPU_COUNT(&set));
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : count;
}

std::atomic<std::size_t> thread_count{usable_cores()};

// Blocks all signals while a worker is started. The worker inherits that, so the program's own threads get the signals.
class SignalsBlocked {
#if defined(__unix__) || defined(__APPLE__)
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#else
 public:
  SignalsBlocked() {}
#endif
};

// Does the tasks of lane `own`, then steals from the other lanes. A thread does every task whose number it has drawn:
// `stopped` is tested before the draw, so stopping loses no task.
template <class Lane, class Task>
void take(Lane* lanes, std::size_t count, std::size_t own, const std::atomic<bool>& stopped, const Task& task) {
  for (std::size_t turn = 0; turn < count; ++turn) {
    Lane& lane = lanes[(own + turn) % count];
    while (!stopped.load(std::memory_order_relaxed)) {
      // Each number is drawn once, whoever draws it. Numbers beyond the end stand for no task.
      const std::size_t i = lane.next.fetch_add(1);
      if (i >= lane.end) break;
      task(i);
    }
  }
}

}  // namespace

Pool& Pool::of_this_process() {
  if (Pool* pool = current.load(std::memory_order_acquire)) return *pool;
  const std::lock_guard<std::mutex> lock(making);
  if (current.load() == nullptr) {
#if defined(__unix__) || defined(__APPLE__)
    // fork() copies a mutex as it is. This thread therefore holds `making` across fork(), and the child can unlock it.
    // A signal handler may fork while this thread is inside run(): the workers finish the tasks that they began first,
    // because the child has no workers that could.
    static const int registered = pthread_atfork(
        [] {
          if (sharing != nullptr) sharing->send_workers_away();
          making.lock();
        },
        [] { making.unlock(); },
        [] {
          current.store(nullptr);
          making.unlock();
        });
    (void)registered;
#endif
    current.store(new Pool, std::memory_order_release);
  }
  return *current.load();
}

void Pool::set_num_threads(std::size_t count) { thread_count = std::min(count, most_threads); }

std::size_t Pool::num_threads() { return thread_count; }

void Pool::start_workers(std::size_t count) noexcept {
  if (workers_ >= count) return;
  const SignalsBlocked blocked;
  try {
    for (; workers_ < count; ++workers_) {
      std::thread([this, index = workers_] { work(index); }).detach();
    }
  } catch (const std::exception&) {
    // The system gives no further thread: those that started do the work.
  }
}

void Pool::offer(std::size_t count, const std::function<void(std::size_t)>& task, std::size_t helpers) noexcept {
  start_workers(helpers);
  // All of this is written before the store to `state_` below, by which a worker learns of the job: it needs no order
  // of its own. No worker reads it meanwhile, because those of the last job have left.
  stopped_.store(false, std::memory_order_relaxed);
  task_ = &task;
  helpers_ = helpers;
  lane_count_ = std::min(count, helpers + 1);
  for (std::size_t lane = 0; lane < lane_count_; ++lane) {
    lanes_[lane].next.store(count * lane / lane_count_, std::memory_order_relaxed);
    lanes_[lane].end = count * (lane + 1) / lane_count_;
  }
  const std::uint64_t number = (state_.load() >> 32) + 1;
  // Sequentially consistent, as is the increment of `sleepers_`: a worker about to sleep either sees the new number, or
  // is counted below and woken.
  state_.store(number << 32 | 1);
  if (sleepers_.load() > 0) {
    // Under the lock: a worker that has looked at `state_` and does not wait yet would miss the call.
    const std::lock_guard<std::mutex> sleeping(sleep_);
    wake_.notify_all();
  }
}

void Pool::wait_for_workers() noexcept {
  state_.fetch_and(~std::uint64_t{1});
  // Acquire, for what the workers wrote before they left, with release: the caller reads the results next.
  for (int turn = 1; (state_.load(std::memory_order_acquire) & 0xffffffffu) != 0; ++turn) {
    // With more threads than cores, the worker may need this core to finish.
    turn % 1024 != 0 ? pause() : std::this_thread::yield();
  }
}

void Pool::send_workers_away() noexcept {
  const bool was_stopped = stopped_.exchange(true);
  wait_for_workers();
  stopped_.store(was_stopped);  // this thread does the remaining tasks itself, in the parent as in the child
}

bool Pool::run(std::size_t count, const std::function<void(std::size_t)>& task,
               const std::function<bool()>& interrupted) {
  const PlainArithmetic mode;
  const std::size_t threads = num_threads();
  const bool shares = count > 1 && threads > 1 && !is_busy_.exchange(true, std::memory_order_acquire);
  Lane own_lane;
  own_lane.end = count;
  std::atomic<bool> own_stopped{false};
  std::atomic<bool>& stopped = shares ? stopped_ : own_stopped;
  if (shares) {
    offer(count, task, threads - 1);
    sharing = this;
  }
  Lane* const lanes = shares ? lanes_ : &own_lane;
  const std::size_t lane_count = shares ? lane_count_ : 1;
  auto asked = Clock::now();
  take(lanes, lane_count, 0, stopped, [&](std::size_t i) {
    task(i);
    if (Clock::now() - asked > interrupt_period) {
      if (interrupted()) stopped.store(true);
      asked = Clock::now();
    }
  });
  const bool was_stopped = stopped.load();
  if (shares) {
    wait_for_workers();
    sharing = nullptr;
    is_busy_.store(false, std::memory_order_release);
  }
  return was_stopped;
}

void Pool::work(std::size_t index) {
  const PlainArithmetic mode;
  std::uint64_t seen = 0;
  for (;;) {
    const auto start = Clock::now();
    std::uint64_t state = state_.load(std::memory_order_acquire);
    for (int turn = 0; (state >> 32) == seen; state = state_.load(std::memory_order_acquire)) {
      pause();
      if (++turn % 64 == 0 && Clock::now() - start > spin_time) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return (state_.load() >> 32) != seen; });
        sleepers_.fetch_sub(1);
      }
    }
    seen = state >> 32;
    // Join only while bit 0 is set. wait_for_workers() clears it before run() returns, so a worker that wakes late
    // never reads `task_`, which points into the caller's stack.
    while ((state & 1) != 0 && (state >> 32) == seen) {
      if (state_.compare_exchange_weak(state, state + 2, std::memory_order_acq_rel)) {
        if (index < helpers_) take(lanes_, lane_count_, index + 1, stopped_, *task_);
        state_.fetch_sub(2, std::memory_order_release);
        break;
      }
    }
  }
}

}  // namespace treefold
