// Elements that the fast loops cannot settle: sums that overflow and products that overflow or underflow on the way.
// Scalar, shared by all vector levels; the rules are those of docs/adr/0027.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elements.hpp"

namespace treefold {

// Folds element `at` of float contributions again, so that only what they are themselves is infinite or NaN on the way.
double settle(Dtype dtype, Op op, const void* const* sources, const Arithmetic& fold, std::size_t at);

// The same for a weighted MEAN.
double settle_weighted(Dtype dtype, const void* const* sources, const Arithmetic& fold, std::size_t at);

// The same for a PRODUCT of complex numbers whose parts are of dtype `real`: its two parts.
struct Parts {
  double real, imaginary;
};
Parts settle_complex_product(Dtype real, const void* const* sources, std::size_t count, std::size_t at);

// The mean of element `at` of 64-bit integers, correctly rounded; `is_signed` says how to read the bits.
double integer_mean(const void* const* sources, std::size_t count, std::size_t at, bool is_signed);

}  // namespace treefold
