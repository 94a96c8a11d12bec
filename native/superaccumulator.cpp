#include "superaccumulator.hpp"

#include <algorithm>
#include <mutex>

#include "floating_mode.hpp"
#include "pool.hpp"

namespace treefold {

namespace {

// Bytes read by one task, and by all that one thread adds up alone, as in batch.cpp.
constexpr std::size_t most_task_bytes = std::size_t{1} << 20, least_task_bytes = std::size_t{1} << 16;

}  // namespace

bool add_up(const std::vector<SumSpan>& arrays, WholeSum loop, std::size_t element_bytes, Superaccumulator& total,
            const std::function<bool()>& interrupted) {
  std::size_t count = 0;
  for (const SumSpan& array : arrays) count += array.end - array.begin;
  if (count * element_bytes <= most_task_bytes) {
    const PlainArithmetic mode;
    loop(arrays.data(), arrays.size(), total);
    return false;
  }
  const std::size_t share = count * element_bytes / (4 * Pool::num_threads());
  const std::size_t room = std::clamp(share, least_task_bytes, most_task_bytes) / element_bytes;
  std::vector<SumSpan> spans;
  std::vector<std::size_t> tasks{0};  // where each task's spans start
  std::size_t left = room;
  for (SumSpan rest : arrays) {
    while (rest.begin < rest.end) {
      SumSpan span = rest;
      span.end = rest.begin = std::min(rest.end, rest.begin + left);
      spans.push_back(span);
      left -= span.end - span.begin;
      if (left != 0) continue;
      tasks.push_back(spans.size());
      left = room;
    }
  }
  if (tasks.back() != spans.size()) tasks.push_back(spans.size());
  std::mutex mutex;
  const auto run_task = [&](std::size_t task) {
    Superaccumulator own;
    loop(spans.data() + tasks[task], tasks[task + 1] - tasks[task], own);
    const std::lock_guard<std::mutex> lock(mutex);
    total.add(own);
  };
  return Pool::of_this_process().run(tasks.size() - 1, run_task, interrupted);
}

}  // namespace treefold
