// Runs the core without Python, for the thread sanitizer: threads that fold, change the number of threads, take and
// give back memory, all at once, at every vector level; fork in the middle of a call; find no memory. Exits with 0 if
// every result is right.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "batch.hpp"
#include "dispatch.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace {

// While it is true, this thread finds no memory.
thread_local bool is_scarce = false;

void* allocated(std::size_t nbytes, std::size_t alignment) {
  void* const block = is_scarce ? nullptr : std::aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(std::size_t nbytes) { return allocated(nbytes, alignof(std::max_align_t)); }
void* operator new(std::size_t nbytes, std::align_val_t alignment) {
  return allocated(nbytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

namespace {

using namespace treefold;

constexpr std::size_t replicas = 5;
constexpr int callers = 4;

std::atomic<int> wrong{0};

const auto never = [] { return false; };

void expect(bool holds, const char* what) {
  if (holds) return;
  ++wrong;
  std::fprintf(stderr, "not so: %s\n", what);
}

// Contributions that name their owner, 2^r, at each of `length` elements, and targets.
template <class T>
struct Arrays {
  explicit Arrays(std::size_t length, bool in_place) {
    for (std::size_t r = 0; r < replicas; ++r) {
      memory.emplace_back(length, static_cast<T>(1 << r));
      sources.push_back(memory.back().data());
    }
    if (!in_place) {
      for (int t = 0; t < 2; ++t) {
        memory.emplace_back(length, T{});
        targets.push_back(memory.back().data());
      }
    } else {
      targets = {memory[1].data(), memory[4].data()};
    }
  }

  Item item(const Level& level, Dtype dtype, Op op, bool in_place) const {
    Item made{};
    made.loop = level.loops[static_cast<int>(dtype)][static_cast<int>(op)][0];
    made.sources = sources.data();
    made.targets = targets.data();
    made.target_count = targets.size();
    made.length = memory[0].size();
    made.source_bytes = made.target_bytes = sizeof(T);
    made.in_place = in_place;
    made.arithmetic.count = replicas;
    return made;
  }

  bool hold(T value) const {
    for (void* target : targets) {
      for (std::size_t i = 0; i < memory[0].size(); ++i) {
        if (static_cast<const T*>(target)[i] != value) return false;
      }
    }
    return true;
  }

  std::vector<std::vector<T>> memory;
  std::vector<const void*> sources;
  std::vector<void*> targets;
};

// One batch of items of several dtypes and lengths; a long one is written around the caches.
void fold_once(const Level& level, bool in_place, std::size_t length) {
  const Arrays<float> floats(length, in_place);
  const Arrays<std::int32_t> whole(length / 3, in_place);
  const Arrays<double> doubles(17, in_place);
  const bool was_interrupted =
      fold_batch({floats.item(level, Dtype::float32, Op::sum, in_place), whole.item(level, Dtype::int32, Op::max, in_place),
                  doubles.item(level, Dtype::float64, Op::product, in_place)},
                 never);
  expect(!was_interrupted, "a batch that nobody interrupts ends by itself");
  expect(floats.hold(31), "the sum of 1, 2, 4, 8 and 16 is 31");
  expect(whole.hold(16), "their maximum is 16");
  expect(doubles.hold(1024), "their product is 1024");
}

void use_memory(int turn) {
  HostMemory& memory = HostMemory::of_this_process();
  const std::size_t nbytes = 100'000 + 50'000 * static_cast<std::size_t>(turn % 4);
  auto* const block = static_cast<unsigned char*>(memory.take(nbytes));
  expect(reinterpret_cast<std::uintptr_t>(block) % 64 == 0, "memory begins at a cache line");
  for (std::size_t at = 0; at < nbytes; at += 4096) block[at] = static_cast<unsigned char>(turn);
  for (std::size_t at = 0; at < nbytes; at += 4096) {
    expect(block[at] == static_cast<unsigned char>(turn), "memory belongs to one owner");
  }
  memory.give_back(block, nbytes);
  if (turn % 16 == 0) memory.clear();
  if (turn % 16 == 8) memory.set_limit(static_cast<std::size_t>(turn) * 10'000);
}

void call(int caller) {
  int turn = caller;
  for (const Level* level : usable_levels()) {
    for (int repeat = 0; repeat < 6; ++repeat, ++turn) {
      Pool::set_num_threads(1 + static_cast<std::size_t>(turn % 5));
      fold_once(*level, repeat % 2 == 0, repeat == 1 ? 600'000 : 60'000 + 1000 * static_cast<std::size_t>(repeat));
      for (int use = 0; use < 8; ++use) use_memory(8 * turn + use);
    }
  }
}

// Small calls in a row, with pauses in which the workers fall asleep.
void call_again_and_again() {
  Pool::set_num_threads(4);
  for (int turn = 0; turn < 200; ++turn) {
    fold_once(*usable_levels()[0], turn % 2 == 0, 30'000);
    if (turn % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A call for more threads than there ever were, without memory for them; then one for which there is memory.
void run_out_of_memory() {
  std::mutex adding;
  std::set<std::thread::id> workers;
  std::atomic<int> done{0};
  const std::function<void(std::size_t)> task = [&](std::size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool was_scarce = is_scarce;
    is_scarce = false;
    {
      const std::lock_guard<std::mutex> lock(adding);
      workers.insert(std::this_thread::get_id());
    }
    is_scarce = was_scarce;
    ++done;
  };
  const std::function<bool()> goes_on = never;
  Pool::set_num_threads(40);
  is_scarce = true;
  Pool::of_this_process().run(100, task, goes_on);
  is_scarce = false;
  expect(done == 100, "a call that finds no memory for threads does all its tasks");
  workers.clear();
  Pool::of_this_process().run(100, task, goes_on);
  expect(done == 200 && workers.size() > 1, "and the next one has its workers again");
}

#if defined(__unix__) || defined(__APPLE__)
// Forks between two tasks, as a signal handler may. Each task adds 1 to its place: one done twice, or half, would show.
void fork_in_the_middle() {
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<int> places(400);
    const auto task = [&](std::size_t i) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      ++places[i];
    };
    pid_t child = -1;
    Pool::set_num_threads(4);
    Pool::of_this_process().run(places.size(), task, [&] {
      if (child == -1) child = fork();
      return false;
    });
    bool is_right = true;
    for (int times : places) is_right &= times == 1;
    if (child == 0) _exit(is_right ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    expect(is_right && status == 0, "parent and child of a fork in the middle of a call do every task once");
  }
}
#else
void fork_in_the_middle() {}
#endif

void interrupt() {
  std::atomic<int> done{0};
  const auto task = [&](std::size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++done;
  };
  const bool was_interrupted = Pool::of_this_process().run(1000, task, [] { return true; });
  expect(was_interrupted && done < 1000, "an interrupted call ends early");
}

}  // namespace

int main() {
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) threads.emplace_back(call, caller);
  for (std::thread& thread : threads) thread.join();
  call_again_and_again();
  run_out_of_memory();
  fork_in_the_middle();
  interrupt();
  expect(HostMemory::of_this_process().info().used_bytes == 0, "all memory was given back");
  std::printf("%zu levels, %d wrong\n", usable_levels().size(), wrong.load());
  return wrong == 0 ? 0 : 1;
}
