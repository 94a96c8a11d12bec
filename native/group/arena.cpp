#include "arena.hpp"

#include <algorithm>
#include <cerrno>

namespace treefold::group {

std::size_t Arena::whole_pages(std::size_t nbytes) {
  return (std::max<std::size_t>(nbytes, 1) + page_bytes - 1) / page_bytes * page_bytes;
}

int Arena::take(std::size_t nbytes, std::size_t& offset) {
  if (nbytes > nbytes_) return ENOMEM;
  const std::size_t wanted = whole_pages(nbytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  offset = offset_;
  for (const auto& [begin, size] : taken_) {
    if (offset + wanted <= begin) break;
    offset = begin + size;
  }
  if (offset + wanted > offset_ + nbytes_) return ENOMEM;
  const int error = allocate(fd_, offset, wanted);
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
