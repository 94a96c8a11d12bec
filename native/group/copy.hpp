// Copies of results into a rank's own memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace treefold::group {

// Results of more bytes than this would push what they are made from out of the caches.
constexpr std::size_t stream_out_bytes = std::size_t{4} << 20;

inline void copy_cached(std::byte* to, const std::byte* from, std::size_t nbytes) { std::memcpy(to, from, nbytes); }

// Copies around the caches: to memory that is not in them, or would not stay there, at half the cost, because its old
// content need not be read. As with memcpy, the two may not overlap.
inline void copy_streamed(std::byte* to, const std::byte* from, std::size_t nbytes) {
#if defined(__SSE2__)
  constexpr std::size_t line = 64, part = sizeof(__m128i);
  const std::size_t head = std::min(nbytes, (line - reinterpret_cast<std::uintptr_t>(to) % line) % line);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; nbytes - at >= line; at += line) {
    __m128i parts[line / part];
    for (std::size_t i = 0; i < line / part; ++i) {
      parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i * part));
    }
    for (std::size_t i = 0; i < line / part; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i * part), parts[i]);
  }
  _mm_sfence();  // or who reads after what this thread writes next might not see it
  std::memcpy(to + at, from + at, nbytes - at);
#else
  std::memcpy(to, from, nbytes);
#endif
}

}  // namespace treefold::group
