// Random numbers for drivers: the same everywhere, of exponents near each other or far apart, with ties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../elements.hpp"

namespace treefold::drivers {

// Marsaglia's xorshift: the same numbers everywhere.
inline std::uint64_t state = 88172645463325252u;
inline std::uint64_t draw() {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

struct Form {
  Dtype dtype;
  int bits, precision;
};
constexpr Form forms[] = {
    {Dtype::float16, 16, 11}, {Dtype::bfloat16, 16, 8}, {Dtype::float32, 32, 24}, {Dtype::float64, 64, 53}};

// Bits of a number whose exponent lies within `spread` of a middle one; a few are zeros, subnormal or special.
inline std::uint64_t number(const Form& form, std::uint64_t middle, std::uint64_t spread) {
  const std::uint64_t most = (std::uint64_t{1} << (form.bits - form.precision)) - 1;
  std::uint64_t fraction = draw() & ((std::uint64_t{1} << (form.precision - 1)) - 1);
  if (draw() % 2) fraction &= std::uint64_t{7} << (form.precision > 11 ? form.precision - 11 : 0);  // ties
  std::uint64_t field = middle + draw() % (spread + 1);
  const std::uint64_t kind = draw() % 64;
  if (kind == 0) field = fraction = 0;
  if (kind == 1) field = 0;
  if (kind == 2 && spread > most / 2) field = most;
  return (draw() % 2) << (form.bits - 1) |
         (field < most ? field
          : kind == 2  ? most
                       : most - 1)
             << (form.precision - 1) |
         fraction;
}

// Bits of a column of contributions, some of which cancel the one before them, so that others decide.
// `is_central`: far from the ends of the range.
inline std::vector<std::uint64_t> column(const Form& form, std::size_t count, std::uint64_t spread, bool is_central = false) {
  const std::uint64_t most = (std::uint64_t{1} << (form.bits - form.precision)) - 1;
  const std::uint64_t middle = is_central ? most / 2 : draw() % most;
  std::vector<std::uint64_t> bits;
  for (std::size_t r = 0; r < count; ++r) {
    const bool cancels = r > 0 && draw() % 3 == 0;
    bits.push_back(cancels ? bits.back() ^ std::uint64_t{1} << (form.bits - 1) : number(form, middle, spread));
  }
  return bits;
}

}  // namespace treefold::drivers
