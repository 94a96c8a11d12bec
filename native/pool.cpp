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

#include "floating_mode.hpp"

namespace treefold {

namespace {

using Clock = std::chrono::steady_clock;

// How long an idle worker spins before it sleeps: longer than the gap between the small reductions of a training step.
constexpr auto spin_time = std::chrono::microseconds(50);
constexpr auto interrupt_period = std::chrono::milliseconds(20);

std::atomic<Pool*> current{nullptr};
std::mutex making;  // guards the creation of `current`
// The pool that runs tasks of this thread on its workers; null outside of Pool::run.
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

// Does the tasks of lane `own`, then steals from the other lanes. A thread does every task that it has drawn: `stopped` is
// tested before the draw, so stopping loses no task.
template <class Lane, class Task>
void take(Lane* lanes, std::size_t count, std::size_t own, const std::atomic<bool>& stopped, const Task& task) {
  for (std::size_t turn = 0; turn < count; ++turn) {
    Lane& lane = lanes[(own + turn) % count];
    while (!stopped.load(std::memory_order_relaxed)) {
      // Each number is drawn once, by any thread. Numbers beyond the end stand for no task.
      // Only atomicity matters here, not order: `state_` has published the inputs of tasks, and their results are read
      // after wait_for_workers().
      const std::size_t i = lane.next.fetch_add(1);
      if (i >= lane.end) break;
      task(i);
    }
  }
}

}  // namespace

Pool& Pool::of_this_process() {
  // Pairs with the release store below: a thread that sees the pointer sees a pool that is fully made.
  if (Pool* pool = current.load(std::memory_order_acquire)) return *pool;
  const std::lock_guard<std::mutex> lock(making);
  // Tested again under the lock: another thread may have made it between the two lines above.
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
          // The workers of this pool exist in the parent alone, so the child makes a pool of its own. The old one is
          // left as it is: a call that is under way here still uses its lanes.
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
  // Only the thread that holds `is_busy_` comes here, so `workers_` needs no atomic.
  if (workers_ >= count) return;
  const SignalsBlocked blocked;
  try {
    for (; workers_ < count; ++workers_) {
      // Detached, and the pool is never destroyed: at exit nothing is joined, so a worker in the middle of a task
      // cannot hang it.
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
  // A plain store loses no join: bit 0 has been clear since the last job, and its workers have all left.
  state_.store(number << 32 | 1);
  if (sleepers_.load() > 0) {
    // Under the lock: a worker that has looked at `state_` and does not wait yet would miss the call.
    const std::lock_guard<std::mutex> sleeping(sleep_);
    wake_.notify_all();
  }
}

void Pool::wait_for_workers() noexcept {
  // Closes the door: a join is a compare-and-swap on the same word, so each worker has either joined before, and is
  // waited for, or never joins this job.
  state_.fetch_and(~std::uint64_t{1});
  // Acquire pairs with the release by which each worker leaves: the caller reads their results next. Workers leave by
  // read-modify-writes, so the last value read here continues the release sequences of all of them.
  for (int turn = 1; (state_.load(std::memory_order_acquire) & 0xffffffffu) != 0; ++turn) {
    // With more threads than cores, the worker may need this core to finish.
    turn % 1024 != 0 ? pause() : std::this_thread::yield();
  }
}

void Pool::send_workers_away() noexcept {
  // First, or workers would go on drawing tasks for as long as there are any.
  const bool was_stopped = stopped_.exchange(true);
  wait_for_workers();
  stopped_.store(was_stopped);  // this thread does the remaining tasks itself, in the parent as in the child
}

bool Pool::run(std::size_t count, const std::function<void(std::size_t)>& task, const std::function<bool()>& interrupted) {
  const std::size_t threads = num_threads();
  // Acquire pairs with the release at the end of run(): the plain members that offer() writes are handed from holder to
  // holder. The flag is tried, never waited for: its holder may be this very thread, below a signal handler.
  const bool shares = count > 1 && threads > 1 && !is_busy_.exchange(true, std::memory_order_acquire);
  Lane own_lane;
  own_lane.end = count;
  std::atomic<bool> own_stopped{false};
  std::atomic<bool>& stopped = shares ? stopped_ : own_stopped;
  if (shares) {
    offer(count, task, threads - 1);
    // From here on, a fork by this thread (by a signal handler, within `interrupted`) has workers to wait for.
    sharing = this;
  }
  Lane* const lanes = shares ? lanes_ : &own_lane;
  const std::size_t lane_count = shares ? lane_count_ : 1;
  auto asked = Clock::now();
  take(lanes, lane_count, 0, stopped, [&](std::size_t i) {
    {
      // Not around `interrupted`: a signal handler sees the caller's mode, and may change it for good.
      const PlainArithmetic mode;
      task(i);
    }
    if (Clock::now() - asked > interrupt_period) {
      if (interrupted()) stopped.store(true);
      asked = Clock::now();
    }
  });
  const bool was_stopped = stopped.load();
  if (shares) {
    wait_for_workers();
    // Before the flag is given back: a fork in between must not send away the workers of the next holder.
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
    // Acquire pairs with the store in offer(): task, lanes and helpers are there when the number is.
    std::uint64_t state = state_.load(std::memory_order_acquire);
    for (int turn = 0; (state >> 32) == seen; state = state_.load(std::memory_order_acquire)) {
      pause();
      if (++turn % 64 == 0 && Clock::now() - start > spin_time) {
        std::unique_lock<std::mutex> lock(sleep_);
        // The predicate looks at `state_` after the increment, offer() at `sleepers_` after its store: in the one order
        // of all sequentially consistent operations, at least one of the two sees the other.
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
        // A pool that was larger has workers beyond this job's threads: they join and leave at once.
        if (index < helpers_) take(lanes_, lane_count_, index + 1, stopped_, *task_);
        // Release pairs with the acquire in wait_for_workers(). After it this worker touches nothing of the job any
        // more.
        state_.fetch_sub(2, std::memory_order_release);
        break;
      }
    }
  }
}

}  // namespace treefold
