// The floating-point mode in which folds are defined: round to nearest, denormals kept.
#pragma once

#include <cstdint>

#if defined(__SSE2__) || defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace treefold {

// Sets that mode for this thread while the object lives. It is needed on every thread: TensorFlow, and PyTorch on
// request, flush denormals on threads that call us, and a new thread inherits the mode of the one that starts it.
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
