#include "arena.hpp"

#include <algorithm>
#include <cerrno>

namespace treefold::group {

int Arena::take(std::size_t nbytes, std::size_t& offset) {
  if (nbytes > nbytes_) return ENOMEM;
  const std::size_t wanted = round_up(std::max<std::size_t>(nbytes, 1), page_bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  offset = place_for(nbytes, offset_);
  for (const auto& [begin, size] : taken_) {
    if (offset + wanted <= begin) break;
    offset = place_for(nbytes, begin + size);
  }
  if (offset + wanted > offset_ + nbytes_) return ENOMEM;
  const int error = allocate(base_, fd_, offset, wanted);
  if (error == 0) taken_[offset] = wanted;
  return error;
}

void Arena::give_back(std::size_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return;
  release(fd_, offset, found->second);
  taken_.erase(found);
}

}  // namespace treefold::group
