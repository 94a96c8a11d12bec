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

  // Calls task(0) … task(count - 1), on this thread and idle workers, and returns when all are done. `interrupted`,
  // called on this thread only and now and then, ends the rest if it returns true; the return value says so.
  // A pool that is busy with another thread's tasks leaves them all to the calling thread. No task may throw.
  bool run(std::size_t count, const std::function<void(std::size_t)>& task, const std::function<bool()>& interrupted);

  // Threads that work on one call, the calling one included; takes effect at the next call, in children of fork() too.
  static void set_num_threads(std::size_t count);
  static std::size_t num_threads();

  // Lets the workers finish the tasks that they have taken, and leaves the rest to the thread that shares them.
  void send_workers_away() noexcept;

 private:
  Pool() = default;
  ~Pool() = delete;  // workers run until the process ends

  // More threads than this never work on one call, whatever is asked for.
  static constexpr std::size_t most_threads = 1024;

  // A run of tasks that one thread begins with; the others take from it when they have done their own.
  struct alignas(64) Lane {
    std::atomic<std::size_t> next{0};
    std::size_t end = 0;
  };

  void start_workers(std::size_t count) noexcept;
  void offer(std::size_t count, const std::function<void(std::size_t)>& task, std::size_t helpers) noexcept;
  void wait_for_workers() noexcept;
  void work(std::size_t index);

  // No mutex: a signal handler that reduces may meet it on the very thread that holds it.
  std::atomic<bool> is_busy_{false};
  std::size_t workers_ = 0;

  // The job: bit 0 says whether workers may still join, the next 31 bits count those at work, the rest is its number.
  std::atomic<std::uint64_t> state_{0};
  const std::function<void(std::size_t)>* task_ = nullptr;
  std::size_t helpers_ = 0;
  // One for each thread, so that the next call with the same arrays finds them in the same core's cache. Here, and not
  // allocated when needed: a call that has taken the pool must not fail before it gives it back.
  Lane lanes_[most_threads];
  std::size_t lane_count_ = 0;
  std::atomic<bool> stopped_{false};

  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};

}  // namespace treefold
