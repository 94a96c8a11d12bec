// Folds that are rare enough to go one element at a time.
#pragma once

#include "exact_loops.hpp"

namespace treefold::TREEFOLD_LEVEL {

// Tells whether a product lost digits: it overflowed or is denormal, or it is 0 although no factor is.
template <class Real>
inline bool is_lossy(Real product, Real a, Real b) {
  const Real size = product < 0 ? -product : product;
  using Limits = std::numeric_limits<Real>;
  // No short circuit: branches cost more than they save here.
  return !((size >= Limits::min()) & (size <= Limits::max())) & (a != 0) & (b != 0);
}

// The product of complex numbers, part by part.
template <Dtype real_dtype, class Real, class Wide, Accumulate accumulate>
void complex_product(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                     std::size_t begin, std::size_t end, bool) {
  for (std::size_t at = begin; at < end; ++at) {
    const Real* first = static_cast<const Real*>(sources[0]) + 2 * at;
    Wide real = first[0], imaginary = first[1];
    bool loses = false;
    for (std::size_t r = 1; r < fold.count; ++r) {
      const Real* factor = static_cast<const Real*>(sources[r]) + 2 * at;
      const Wide x = factor[0], y = factor[1];
      const Wide terms[] = {real * x, imaginary * y, real * y, imaginary * x};
      if constexpr (accumulate == Accumulate::exact) {
        loses |= is_lossy(terms[0], real, x) | is_lossy(terms[1], imaginary, y) | is_lossy(terms[2], real, y) |
                 is_lossy(terms[3], imaginary, x);
      }
      real = terms[0] - terms[1];
      imaginary = terms[2] + terms[3];
    }
    if constexpr (accumulate == Accumulate::exact) {
      if (loses || !(real - real == 0) || !(imaginary - imaginary == 0)) {
        const Parts again = settle_complex_product(real_dtype, sources, fold.count, at);
        real = again.real;
        imaginary = again.imaginary;
      }
      real = canonical<Wide, 1>(real);
      imaginary = canonical<Wide, 1>(imaginary);
    }
    for (std::size_t t = 0; t < target_count; ++t) {
      Real* target = static_cast<Real*>(targets[t]) + 2 * at;
      target[0] = static_cast<Real>(real);
      target[1] = static_cast<Real>(imaginary);
    }
  }
}

// The MEAN of 32-bit integers: by `few` up to 2^20 contributions, because float64 holds their sum; else by whole numbers.
template <Dtype dtype, class Result, Loop few>
void integer_mean_of_any_count(const void* const* sources, const Arithmetic& fold, void* const* targets,
                               std::size_t target_count, std::size_t begin, std::size_t end, bool stream_out) {
  constexpr std::size_t most_in_float64 = std::size_t{1} << 20;
  const Loop loop = fold.count <= most_in_float64 ? few : &exact_integer_mean<dtype, Result>;
  loop(sources, fold, targets, target_count, begin, end, stream_out);
}

template <bool is_signed>
void wide_integer_mean(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                       std::size_t begin, std::size_t end, bool) {
  for (std::size_t at = begin; at < end; ++at) {
    const double mean = integer_mean(sources, fold.count, at, is_signed);
    for (std::size_t t = 0; t < target_count; ++t) static_cast<double*>(targets[t])[at] = mean;
  }
}

}  // namespace treefold::TREEFOLD_LEVEL
