// Elements that the fast loops cannot settle: sums and products that overflow on the way although every contribution
// is finite. Scalar, shared by all vector levels; the rules are those of DECISIONS in docs/adr/0004.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elements.hpp"

namespace treefold {

// Folds element `at` of float contributions again if all of them are finite, else returns `total` as it is.
double settle(Dtype dtype, Op op, const void* const* sources, const Arithmetic& fold, std::size_t at, double total);

// The same for a weighted MEAN.
double settle_weighted(Dtype dtype, const void* const* sources, const Arithmetic& fold, std::size_t at, double total);

// The mean of element `at` of 64-bit integers, correctly rounded; `is_signed` says how to read the bits.
double integer_mean(const void* const* sources, std::size_t count, std::size_t at, bool is_signed);

}  // namespace treefold
