// The processor's sticky flag "inexact" as a proof that additions were exact.
//
// This is the only place that reads the flag. A compiler does not know the flag: if it moved an addition out of the window, a
// wrong sum would pass for an exact one. So the window is one function, and its results go to memory. They are sums, or sums
// rounded by operations that leave the flag alone. The caller's memory is covered by "memory". The scratch is an operand of
// both asm statements, because a local array may live in registers if its address does not leave the function.
#pragma once

#include "level.hpp"

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__aarch64__))
#define TREEFOLD_HAS_FLAG 1
static_assert(FLT_EVAL_METHOD == 0, "additions are made in their own precision");
#else
#define TREEFOLD_HAS_FLAG 0
#endif

namespace treefold::TREEFOLD_LEVEL {

// Runs `add`, which writes sums into the scratch or the caller's memory, and tells whether each of its operations was exact.
// Infinities are; an operation that is invalid (infinity less infinity) is not.
template <class Scratch, class Add>
inline bool adds_exactly([[maybe_unused]] Scratch& scratch, [[maybe_unused]] Add&& add) {
#if TREEFOLD_HAS_FLAG && defined(__x86_64__)
  const unsigned plain = 0x1f80;  // no flag set; all exceptions masked, nearest, no flushing
  unsigned after;
  asm volatile("ldmxcsr %1" : "+m"(scratch) : "m"(plain) : "memory");
  add();
  asm volatile("stmxcsr %0" : "=m"(after), "+m"(scratch) : : "memory");
  constexpr unsigned inexact = 0x20, overflow = 0x08, invalid = 0x01;
  return (after & (inexact | overflow | invalid)) == 0;
#elif TREEFOLD_HAS_FLAG
  const std::uint64_t none = 0;
  std::uint64_t after;
  asm volatile("msr fpsr, %1" : "+m"(scratch) : "r"(none) : "memory");
  add();
  asm volatile("mrs %0, fpsr" : "=r"(after), "+m"(scratch) : : "memory");
  constexpr std::uint64_t inexact = 0x10, overflow = 0x04, invalid = 0x01;
  return (after & (inexact | overflow | invalid)) == 0;
#else
  return false;
#endif
}

}  // namespace treefold::TREEFOLD_LEVEL
