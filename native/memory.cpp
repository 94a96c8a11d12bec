#include "memory.hpp"

#include <cstdlib>
#include <iterator>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_MSC_VER)
#include <malloc.h>
#endif

namespace treefold {

namespace {

constexpr std::size_t line = 64;
constexpr std::size_t huge_page = std::size_t{1} << 21;

// Sizes are rounded up by at most an eighth, so that nearly equal results share blocks.
std::size_t rounded(std::size_t nbytes) {
  if (nbytes == 0) return line;
  std::size_t step = line;
  while (step * 16 < nbytes) step *= 2;
  return (nbytes + step - 1) / step * step;
}

void* allocate(std::size_t nbytes) {
#if defined(_MSC_VER)
  return _aligned_malloc(nbytes, line);
#else
  void* block = nullptr;
  const bool is_huge = nbytes >= 2 * huge_page;
  if (posix_memalign(&block, is_huge ? huge_page : line, nbytes) != 0) return nullptr;
#if defined(__linux__)
  if (is_huge) madvise(block, nbytes, MADV_HUGEPAGE);  // a hint: fewer faults at first use
#endif
  return block;
#endif
}

void release(void* block) {
#if defined(_MSC_VER)
  _aligned_free(block);
#else
  std::free(block);
#endif
}

}  // namespace

HostMemory& HostMemory::of_this_process() {
  // Never destroyed: results may outlive every static object.
  static HostMemory* const memory = [] {
    static HostMemory* made = nullptr;
    // Before pthread_atfork: the handlers may run as soon as they are registered, in another thread's fork().
    made = new HostMemory;
#if defined(__unix__) || defined(__APPLE__)
    // The forking thread holds the lock across fork(): the child gets consistent lists and a lock that it can unlock.
    pthread_atfork([] { made->mutex_.lock(); }, [] { made->mutex_.unlock(); }, [] { made->mutex_.unlock(); });
#endif
    return made;
  }();
  return *memory;
}

// No Python code runs under the lock, so no finalizer or signal handler can interrupt its holder and wait for it.
// Blocks are allocated outside of it.
void* HostMemory::take(std::size_t nbytes) {
  const std::size_t size = rounded(nbytes);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Exactly this size: a larger block would be lost to results of its own size, and rounding makes near sizes equal.
    const auto found = by_size_.find(size);
    if (found != by_size_.end()) {
      void* const start = found->second->start;
      // No one reads the block any more: it came back with the last owner of its array, and every view is an owner.
      oldest_first_.erase(found->second);
      by_size_.erase(found);
      info_.cached_bytes -= size;
      info_.used_bytes += size;
      ++info_.hits;
      return start;
    }
  }
  void* block = allocate(size);
  if (block == nullptr) {  // the cache itself may hold the memory that is missing
    // Outside of the lock, which it takes itself; blocks that another thread gives back meanwhile may stay.
    clear();
    block = allocate(size);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++info_.misses;
  if (block != nullptr) info_.used_bytes += size;
  return block;
}

void HostMemory::give_back(void* block, std::size_t nbytes) noexcept {
  const std::size_t size = rounded(nbytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  info_.used_bytes -= size;
  if (size > info_.limit_bytes) return release(block);
  // Makes room first, so that the cache is within its bound at every moment, not only after the next call.
  shrink_to(info_.limit_bytes - size);
  try {
    oldest_first_.push_back({block, size});
    try {
      by_size_.emplace(size, std::prev(oldest_first_.end()));
    } catch (const std::bad_alloc&) {
      oldest_first_.pop_back();
      throw;
    }
  } catch (const std::bad_alloc&) {
    return release(block);  // no memory to remember it with
  }
  info_.cached_bytes += size;
}

HostMemory::Info HostMemory::info() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return info_;
}

void HostMemory::set_limit(std::size_t nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  info_.limit_bytes = nbytes;
  shrink_to(nbytes);
}

void HostMemory::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  shrink_to(0);
}

void HostMemory::shrink_to(std::size_t nbytes) {
  while (info_.cached_bytes > nbytes) {
    const auto oldest = oldest_first_.begin();
    auto [at, end] = by_size_.equal_range(oldest->nbytes);
    while (at != end && at->second != oldest) ++at;
    by_size_.erase(at);
    release(oldest->start);
    info_.cached_bytes -= oldest->nbytes;
    oldest_first_.erase(oldest);
  }
}

}  // namespace treefold
