// Products with partial results beyond the range of their accumulator, and means of 64-bit integers. These functions are
// scalar and shared by all vector levels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elements.hpp"

namespace treefold {

// Returns element `at` of a PRODUCT of floats with bounds so wide that no intermediate value overflows. The result is
// infinite or NaN only if a contribution is, or if the exact result does not fit.
double settle_product(Dtype dtype, const void* const* sources, std::size_t count, std::size_t at);

// Returns element `at` of a PRODUCT of complex numbers with parts of the dtype `real`; no intermediate value overflows.
struct Parts {
  double real, imaginary;
};
Parts settle_complex_product(Dtype real, const void* const* sources, std::size_t count, std::size_t at);

// Returns the mean of element `at` of 64-bit integers, correctly rounded; `is_signed` tells how to read the bits.
double integer_mean(const void* const* sources, std::size_t count, std::size_t at, bool is_signed);

}  // namespace treefold
