// The events that the simulator's clock waits for: at most one for each of a fixed number of keys, the first on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace treefold {

struct Event {
  double time;
  std::int32_t key;
};

// A total order: equal times must give the same timeline on every machine. There are no branches, because processors predict
// the order of two events badly.
inline bool is_before(const Event& one, const Event& other) {
  return (one.time < other.time) | ((one.time == other.time) & (one.key < other.key));
}

// A binary heap that knows where each key's event is.
class Events {
 public:
  explicit Events(std::size_t num_keys) : place_(num_keys) { heap_.reserve(num_keys); }

  bool empty() const { return heap_.empty(); }
  const Event& top() const { return heap_.front(); }

  void add(const Event& event) {
    heap_.push_back(event);
    rise(heap_.size() - 1, event);
  }

  // Gives a key's event an earlier time.
  void advance(const Event& event) { rise(place_[event.key], event); }

  void replace_top(const Event& event) {
    // The gap sinks to the bottom, where later events usually belong.
    std::size_t gap = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * gap + 1) {
      if (child + 1 < heap_.size()) child += is_before(heap_[child + 1], heap_[child]);
      put(gap, heap_[child]);
      gap = child;
    }
    rise(gap, event);
  }

  void pop() {
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) replace_top(last);
  }

 private:
  void rise(std::size_t gap, const Event& event) {
    for (; gap > 0 && is_before(event, heap_[(gap - 1) / 2]); gap = (gap - 1) / 2) put(gap, heap_[(gap - 1) / 2]);
    put(gap, event);
  }

  void put(std::size_t place, const Event& event) {
    heap_[place] = event;
    place_[event.key] = place;
  }

  std::vector<Event> heap_;
  std::vector<std::size_t> place_;  // by key: where its event is in the heap
};

}  // namespace treefold
