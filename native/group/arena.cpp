#include "arena.hpp"

#include <algorithm>
#include <cerrno>

namespace treefold::group {

int Arena::take(std::size_t nbytes, std::size_t& offset) {
  if (nbytes > nbytes_) return ENOMEM;
  const std::size_t wanted = round_up(std::max<std::size_t>(nbytes, 1), page_bytes);
  // An array may be dropped by any thread while another is made. Nothing under the lock runs Python code, so no
  // finalizer can interrupt its holder and wait for it. A forked child does not come here: it is no rank, and drops
  // nothing.
  const std::lock_guard<std::mutex> lock(mutex_);
  offset = place_for(nbytes, offset_);
  for (const auto& [begin, size] : taken_) {
    if (offset + wanted <= begin) break;
    offset = place_for(nbytes, begin + size);
  }
  if (offset + wanted > offset_ + nbytes_) return ENOMEM;
  const int error = allocate(base_, fd_, offset, wanted);
  // Noted only once its pages are there; until then the lock keeps the gap.
  if (error == 0) taken_[offset] = wanted;
  return error;
}

void Arena::give_back(std::size_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return;
  // Other ranks may still read here only in an operation that is broken, whose result nobody takes: a hole within the
  // file reads as zeros. In any other one they have read everything before this rank's call returned with its arrays.
  release(fd_, offset, found->second);
  taken_.erase(found);
}

}  // namespace treefold::group
