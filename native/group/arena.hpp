// Memory of one rank that the other ranks of its host can read: where Group.empty puts arrays.
#pragma once

#include <map>
#include <mutex>

#include "segment.hpp"

namespace treefold::group {

class Arena {
 public:
  Arena(std::byte* base, int fd, std::size_t offset, std::size_t nbytes)
      : base_(base), fd_(fd), offset_(offset), nbytes_(nbytes) {}

  // Puts the offset of `nbytes` bytes, in the segment and at a whole page, into `offset`. Returns 0 or an error number.
  int take(std::size_t nbytes, std::size_t& offset);
  void give_back(std::size_t offset);

 private:
  std::byte* const base_;
  const int fd_;
  const std::size_t offset_, nbytes_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> taken_;  // offset → bytes
};

}  // namespace treefold::group
