// Whole numbers of any size, the binary formats that they are rounded to, and the parts of floats. They make the last tier of
// exact sums (exact.cpp), and the partial sums that floats cannot hold (partial.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace treefold {

constexpr int limb_bits = 32;
constexpr std::uint64_t limb_mask = 0xffffffffu;

// Numbers without sign: words of 32 bits, the lowest first, none of the highest ones 0.
using Natural = std::vector<std::uint32_t>;

int bit_length(std::uint64_t number);
std::int64_t bit_length(const Natural& number);
void trim(Natural& number);  // removes the highest words that are 0

// A binary format: its bits, and those of its significand with the hidden one.
struct BinaryFormat {
  int bits, precision;
  int special() const { return (1 << (bits - precision)) - 1; }  // the exponent field of infinities and NaN
  int least_unit() const { return 3 - precision - (1 << (bits - precision - 1)); }  // log2 of the least number
  std::uint64_t infinity() const { return static_cast<std::uint64_t>(special()) << (precision - 1); }
  std::uint64_t nan() const { return infinity() | std::uint64_t{1} << (precision - 2); }
  std::uint64_t sign() const { return std::uint64_t{1} << (bits - 1); }
};

// A contribution: significand · 2^exponent, or infinite, or NaN.
struct Number {
  std::uint64_t significand = 0;
  int exponent = 0;
  bool is_negative = false, is_infinite = false, is_nan = false;
};

// The parts of a float with these bits.
Number of_float(std::uint64_t bits, const BinaryFormat& format);

// A quotient: 63 or 64 bits, times 2^exponent; `is_more`: whether there is a remainder.
struct Quotient {
  std::uint64_t bits;
  std::int64_t exponent;
  bool is_more;
};

Quotient divide(const Natural& number, const Natural& divisor);

// Rounds to nearest, ties to even; too large values become infinite.
std::uint64_t rounded(const Quotient& value, const BinaryFormat& format);

}  // namespace treefold
