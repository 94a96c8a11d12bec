// One call folds a batch: many arrays, each with its contributions and targets, in place.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "elements.hpp"

namespace treefold {

struct Item {
  Loop loop;
  const void* const* sources;
  void* const* targets;
  std::size_t target_count;
  std::size_t length;        // elements
  std::size_t source_bytes;  // of one element
  std::size_t target_bytes;
  bool in_place;             // a target is a source
  Arithmetic arithmetic;
};

// How a batch walks through memory. Folds use the defaults; the benchmark of the memory limit tries other values.
struct Manner {
  enum class Stream { large, always, never };
  std::size_t task_bytes = 0;         // the most bytes that one task reads and writes; 0: chosen for the caches
  Stream stream = Stream::large;      // whether to write around the caches; large: if results do not fit them
};

// Folds all items, on the threads of the pool unless they are small. Returns whether `interrupted` ended it early.
bool fold_batch(const std::vector<Item>& items, const std::function<bool()>& interrupted, const Manner& manner = {});

// Folds all items on this thread if they read and write few bytes; by default, fewer than two tasks. Returns whether it
// did.
bool fold_if_small(const std::vector<Item>& items, std::size_t most_bytes = std::size_t{1} << 16);

}  // namespace treefold
