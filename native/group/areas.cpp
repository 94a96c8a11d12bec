#include "areas.hpp"

#include <algorithm>

namespace treefold::group {

namespace {

// Sizes are rounded up by at most an eighth, so that nearly equal results share areas.
std::size_t rounded(std::size_t nbytes) {
  std::size_t step = page_bytes;
  while (step * 16 < nbytes) step *= 2;
  return (std::max<std::size_t>(nbytes, 1) + step - 1) / step * step;
}

}  // namespace

bool Areas::choose(std::size_t nbytes, bool is_kept, Choice& choice) {
  if (is_kept && lease(rounded(nbytes), choice)) return true;
  return use_scratch(nbytes, choice);
}

bool Areas::is_leased(std::size_t index) const {
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    const auto& block = *reinterpret_cast<Block*>(base_ + layout_.blocks() + rank * Layout::block_bytes);
    // Acquire pairs with the decrement in ~Lease: where the count is 0, the last reader has finished with the area. No
    // count can rise meanwhile, because ranks take leases after an operation, and all of them stand in this one's
    // meeting.
    if (block.leases[index].load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

bool Areas::lease(std::size_t nbytes, Choice& choice) {
  Area* const areas = control().areas;
  // First without giving anything up: an area that is free but warm is worth keeping for the next result of its size.
  for (std::size_t attempt = 0; attempt < 2; ++attempt) {
    std::size_t free = most_areas;
    for (std::size_t index = 0; index < most_areas; ++index) {
      if (areas[index].nbytes == 0) {
        free = std::min(free, index);
      } else if (areas[index].nbytes == nbytes && !is_leased(index)) {
        choice.area = static_cast<std::uint32_t>(index);
        choice.area_offset = areas[index].offset;
        return true;
      }
    }
    const std::size_t offset = gap(nbytes);
    if (free < most_areas && offset != 0) {
      // Allocated here, by one rank for all: a missing page would kill whoever writes it first (SIGBUS).
      if (allocate(base_, fd_, offset, nbytes) == 0) {
        areas[free] = {offset, nbytes};
        choice.area = static_cast<std::uint32_t>(free);
        choice.area_offset = offset;
        return true;
      }
    }
    drop_unleased();
  }
  return false;
}

// Returns the offset of the first gap between the areas that has so many bytes; 0 if there is none.
std::size_t Areas::gap(std::size_t nbytes) const {
  std::size_t begin = place_for(nbytes, layout_.leased());
  const std::size_t end = begin + layout_.result_bytes;
  if (nbytes > layout_.result_bytes) return 0;
  // At most most_areas moves: every one of them passes an area for good.
  for (bool is_moved = true; is_moved && begin <= end - nbytes;) {
    is_moved = false;
    for (const Area& area : control().areas) {
      // Only ever onwards, whatever another process has written there.
      if (area.nbytes != 0 && area.offset < begin + nbytes && begin < area.offset + area.nbytes) {
        begin = place_for(nbytes, area.offset + area.nbytes);
        is_moved = true;
      }
    }
  }
  return begin <= end - nbytes ? begin : 0;
}

void Areas::drop_unleased() {
  for (std::size_t index = 0; index < most_areas; ++index) {
    Area& area = control().areas[index];
    if (area.nbytes == 0 || is_leased(index)) continue;
    // No lease, so no array on any rank shows these pages.
    release(fd_, area.offset, area.nbytes);
    area = {};
  }
}

bool Areas::use_scratch(std::size_t nbytes, Choice& choice) {
  choice.area = most_areas;
  choice.area_offset = layout_.scratch();
  // Plain, like the table of areas: only the last arriver of a meeting comes here, and meetings follow each other.
  std::uint64_t& allocated = control().scratch_bytes;
  if (nbytes <= allocated) return true;
  const std::size_t wanted = std::min(rounded(nbytes), layout_.result_bytes);
  if (nbytes > wanted || allocate(base_, fd_, layout_.scratch() + allocated, wanted - allocated) != 0) {
    // The operation is refused on all ranks alike; the word for why travels in the choice.
    choice.missing_bytes = nbytes;
    return false;
  }
  allocated = wanted;
  return true;
}

}  // namespace treefold::group
