#include "batch.hpp"

#include <algorithm>

#include "floating_mode.hpp"
#include "pool.hpp"

namespace treefold {

namespace {

// Bytes read and written by one task. They are enough to pay for handing it out, few enough to share evenly and to be
// interruptible, and no more than a second-level cache holds.
constexpr std::size_t most_task_bytes = std::size_t{1} << 20;
constexpr std::size_t least_task_bytes = std::size_t{1} << 16;
// Elements of an array are cut at multiples of this, so that no two tasks write into one cache line.
constexpr std::size_t most_grain = 1024, least_grain = 64;
// Results of more bytes than this are written around the caches: they would evict the contributions.
constexpr std::size_t stream_bytes = std::size_t{1} << 22;
// One thread folds fewer bytes in about the time that it takes to wake others, which sleep between the steps of a program.
// Sharing a quarter of this was slower on two cores, and far slower where other programs used them.
constexpr std::size_t least_shared_bytes = std::size_t{1} << 20;

struct Span {
  std::size_t item, begin, end;
};

std::size_t bytes_per_element(const Item& item) {
  return item.arithmetic.count * item.source_bytes + item.target_count * item.target_bytes;
}

std::size_t bytes_moved(const std::vector<Item>& items) {
  std::size_t moved = 0;
  for (const Item& item : items) moved += item.length * bytes_per_element(item);
  return moved;
}

}  // namespace

bool fold_if_small(const std::vector<Item>& items, std::size_t most_bytes) {
  if (bytes_moved(items) > most_bytes) return false;
  const PlainArithmetic mode;
  for (const Item& item : items) {
    item.loop(item.sources, item.arithmetic, item.targets, item.target_count, 0, item.length, false);
  }
  return true;
}

bool fold_batch(const std::vector<Item>& items, const std::function<bool()>& interrupted, const Manner& manner) {
  if (manner.task_bytes == 0 && fold_if_small(items, least_shared_bytes)) return false;
  std::size_t written = 0;
  for (const Item& item : items) {
    if (!item.in_place) written += item.length * item.target_count * item.target_bytes;
  }
  const bool streams = written > stream_bytes;
  // Four tasks for each thread: a thread that is held up loses a quarter of its part to idle threads.
  const std::size_t share = bytes_moved(items) / (4 * Pool::num_threads());
  const std::size_t task_bytes = manner.task_bytes ? manner.task_bytes : std::clamp(share, least_task_bytes, most_task_bytes);

  std::vector<Span> spans;
  std::vector<std::size_t> tasks{0};  // where each task's spans start
  std::size_t filled = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t per_element = bytes_per_element(items[i]);
    const std::size_t grain = per_element * most_grain <= most_task_bytes ? most_grain : least_grain;
    for (std::size_t at = 0; at < items[i].length;) {
      // At least one byte is left, so every turn of the loop takes a grain and comes to an end.
      const std::size_t room = (task_bytes - std::min(filled, task_bytes - 1)) / per_element;
      const std::size_t step = std::max((room + grain - 1) / grain * grain, grain);
      // A remainder of less than a grain joins this task: handing it out would cost more than folding it.
      const std::size_t end = items[i].length - at <= step + grain ? items[i].length : at + step;
      spans.push_back({i, at, end});
      filled += (end - at) * per_element;
      at = end;
      if (filled >= task_bytes) {
        tasks.push_back(spans.size());
        filled = 0;
      }
    }
  }
  if (tasks.back() != spans.size()) tasks.push_back(spans.size());
  const auto run_task = [&](std::size_t task) {
    for (std::size_t s = tasks[task]; s < tasks[task + 1]; ++s) {
      const Item& item = items[spans[s].item];
      const bool around =
          manner.stream == Manner::Stream::large ? streams && !item.in_place : manner.stream == Manner::Stream::always;
      item.loop(item.sources, item.arithmetic, item.targets, item.target_count, spans[s].begin, spans[s].end, around);
    }
  };
  return Pool::of_this_process().run(tasks.size() - 1, run_task, interrupted);
}

}  // namespace treefold
