// The floating-point mode in which folds are defined: round to nearest, denormals kept.
#pragma once

#include <cstdint>

#if defined(__SSE2__) || defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace treefold {

// While it lives, this thread computes in that mode: programs (TensorFlow's graphs, PyTorch on request) switch denormals
// off for threads that call us, and threads inherit the mode of the one that starts them.
class PlainArithmetic {
#if defined(__SSE2__) || defined(__x86_64__) || defined(_M_X64)
 public:
  PlainArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(plain); }
  ~PlainArithmetic() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned plain = 0x1f80;  // all exceptions masked, nearest, no flushing
  const unsigned before_;
#elif defined(__aarch64__) && defined(__GNUC__)
 public:
  PlainArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~PlainArithmetic() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  std::uint64_t before_ = 0;
#else
 public:
  PlainArithmetic() {}
#endif
 public:
  PlainArithmetic(const PlainArithmetic&) = delete;
  PlainArithmetic& operator=(const PlainArithmetic&) = delete;
};

}  // namespace treefold
