// A cache of memory for results. Fresh memory costs page faults, which take longer than the reduction that fills it, so
// a freed block is kept for the next result of its size.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>

namespace treefold {

class HostMemory {
 public:
  static HostMemory& of_this_process();

  // Returns at least `nbytes` bytes at a multiple of 64, or null if the system has none.
  void* take(std::size_t nbytes);
  void give_back(void* block, std::size_t nbytes) noexcept;

  struct Info {
    std::size_t used_bytes, cached_bytes, limit_bytes, hits, misses;
  };
  Info info();
  void set_limit(std::size_t nbytes);
  void clear();

 private:
  struct Block {
    void* start;
    std::size_t nbytes;
  };
  void shrink_to(std::size_t nbytes);

  // Guards all members below it. Any thread may lock it, with or without the GIL, and across fork().
  std::mutex mutex_;
  std::list<Block> oldest_first_;
  std::multimap<std::size_t, std::list<Block>::iterator> by_size_;
  Info info_{0, 0, std::size_t{1} << 30, 0, 0};
};

}  // namespace treefold
