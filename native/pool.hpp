// A pool of threads for loops over memory: spins a little, then sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

namespace treefold {

class Pool {
 public:
  // The pool of this process: a child of fork() gets a new one, because threads do not survive fork().
  static Pool& of_this_process();

  // Calls task(0) … task(count - 1) on this thread and on idle workers, and returns when all are done. This thread
  // calls `interrupted` from time to time; once it returns true, no further task begins. Returns whether that happened.
  // If the pool is busy with another thread's tasks, the calling thread does all of its own. No task may throw.
  bool run(std::size_t count, const std::function<void(std::size_t)>& task, const std::function<bool()>& interrupted);

  // Sets how many threads work on one call, the calling one included, from the next call on and in children of fork().
  static void set_num_threads(std::size_t count);
  static std::size_t num_threads();

  // Waits until the workers have finished the tasks that they began. The thread that called run() does the others.
  // Called before fork(), because the child has no workers.
  void send_workers_away() noexcept;

 private:
  Pool() = default;
  ~Pool() = delete;  // workers run until the process ends

  // The upper bound of set_num_threads.
  static constexpr std::size_t most_threads = 1024;

  // Consecutive tasks that belong to one thread first; other threads steal from it when their own lanes are empty.
  // A lane fills a cache line, so that threads that take tasks do not invalidate each other's counters.
  struct alignas(64) Lane {
    std::atomic<std::size_t> next{0};
    std::size_t end = 0;
  };

  void start_workers(std::size_t count) noexcept;
  void offer(std::size_t count, const std::function<void(std::size_t)>& task, std::size_t helpers) noexcept;
  void wait_for_workers() noexcept;
  void work(std::size_t index);

  // An atomic flag and no mutex: a signal handler may reduce on the very thread that holds the pool, and would hang.
  std::atomic<bool> is_busy_{false};
  std::size_t workers_ = 0;

  // The job. Bit 0: workers may still join. Bits 1 to 31: the number of workers that have joined and not yet left.
  // Bits 32 to 63: the job's number, by which a worker recognises a new one.
  std::atomic<std::uint64_t> state_{0};
  // Plain, because only the holder of `is_busy_` writes them, while no worker has joined; workers read them between
  // joining and leaving. They point into the caller's stack and are never read after run() has returned.
  const std::function<void(std::size_t)>* task_ = nullptr;
  std::size_t helpers_ = 0;
  // One lane per thread: the next call with the same arrays finds each part in the cache of the same core. The lanes
  // are a member, because a call that holds the pool must not fail on an allocation before it releases the pool.
  Lane lanes_[most_threads];
  std::size_t lane_count_ = 0;
  std::atomic<bool> stopped_{false};

  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};

}  // namespace treefold
