#include "whole.hpp"

#include <algorithm>
#include <array>

namespace treefold {

int bit_length(std::uint64_t number) {
  int length = 0;
  for (int step = 32; step > 0; step /= 2) {
    if (number >> step != 0) {
      length += step;
      number >>= step;
    }
  }
  return length + (number != 0);
}

void trim(Natural& number) {
  while (!number.empty() && number.back() == 0) number.pop_back();
}

std::int64_t bit_length(const Natural& number) {
  if (number.empty()) return 0;
  return static_cast<std::int64_t>(number.size() - 1) * limb_bits + bit_length(number.back());
}

Number of_float(std::uint64_t bits, const BinaryFormat& format) {
  Number number;
  const std::uint64_t hidden = std::uint64_t{1} << (format.precision - 1);
  const int field = static_cast<int>(bits >> (format.precision - 1)) & format.special();
  number.is_negative = (bits & format.sign()) != 0;
  if (field == format.special()) {
    number.is_nan = (bits & (hidden - 1)) != 0;
    number.is_infinite = !number.is_nan;
  } else {
    number.significand = (bits & (hidden - 1)) | (field > 0 ? hidden : 0);
    number.exponent = std::max(field, 1) - 1 + format.least_unit();
  }
  return number;
}

namespace {

Natural shifted_left(const Natural& number, std::size_t bits) {
  Natural result(number.size() + bits / limb_bits + 1);
  for (std::size_t i = 0; i < number.size(); ++i) {
    const std::uint64_t both = static_cast<std::uint64_t>(number[i]) << bits % limb_bits;
    result[i + bits / limb_bits] |= static_cast<std::uint32_t>(both);
    result[i + bits / limb_bits + 1] |= static_cast<std::uint32_t>(both >> limb_bits);
  }
  trim(result);
  return result;
}

void halve(Natural& number) {
  for (std::size_t i = 0; i < number.size(); ++i) {
    const std::uint64_t above = i + 1 < number.size() ? number[i + 1] : 0;
    number[i] = static_cast<std::uint32_t>((above << limb_bits | number[i]) >> 1);
  }
  trim(number);
}

bool is_less(const Natural& a, const Natural& b) {
  if (a.size() != b.size()) return a.size() < b.size();
  return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
}

void subtract(Natural& a, const Natural& b) {  // a >= b
  std::int64_t borrow = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::int64_t difference = static_cast<std::int64_t>(a[i]) - (i < b.size() ? b[i] : 0) + borrow;
    a[i] = static_cast<std::uint32_t>(difference);
    borrow = difference >> limb_bits;
  }
  trim(a);
}

Quotient divide_by_any(const Natural& number, const Natural& divisor) {
  // Both are shifted so that the quotient has 63 or 64 bits.
  const std::int64_t shift = 63 - (bit_length(number) - bit_length(divisor));
  Natural rest = shift > 0 ? shifted_left(number, static_cast<std::size_t>(shift)) : number;
  Natural part = shifted_left(divisor, static_cast<std::size_t>(63 + std::max<std::int64_t>(-shift, 0)));
  std::uint64_t bits = 0;
  for (int i = 63; i >= 0; --i) {
    if (!is_less(rest, part)) {
      subtract(rest, part);
      bits |= std::uint64_t{1} << i;
    }
    halve(part);
  }
  return {bits, -shift, !rest.empty()};
}

// Divides by one word: the highest five words of the number decide everything except whether there is a remainder.
Quotient divide_by_word(const Natural& number, std::uint32_t divisor) {
  constexpr std::size_t length = 5;
  std::array<std::uint32_t, length> words{};  // of the quotient, the highest first
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint32_t word = i < number.size() ? number[number.size() - 1 - i] : 0;
    rest = rest << limb_bits | word;
    words[i] = static_cast<std::uint32_t>(rest / divisor);
    rest %= divisor;
  }
  bool is_more = rest != 0;
  for (std::size_t i = length; i < number.size(); ++i) is_more |= number[number.size() - 1 - i] != 0;
  // The first word may be 0, because it was less than the divisor; the second then is not, or the third.
  std::size_t top = 0;
  while (words[top] == 0) ++top;
  const std::uint64_t high = static_cast<std::uint64_t>(words[top]) << limb_bits | words[top + 1];
  const std::uint64_t next = words[top + 2];
  const int up = limb_bits - bit_length(words[top]);
  for (std::size_t i = top + 3; i < length; ++i) is_more |= words[i] != 0;
  is_more |= (next << up & limb_mask) != 0;
  const auto below = static_cast<std::int64_t>(number.size()) - static_cast<std::int64_t>(top + 2);
  return {high << up | next >> (limb_bits - up), below * limb_bits - up, is_more};
}

}  // namespace

Quotient divide(const Natural& number, const Natural& divisor) {
  return divisor.size() == 1 ? divide_by_word(number, divisor[0]) : divide_by_any(number, divisor);
}

std::uint64_t rounded(const Quotient& value, const BinaryFormat& format) {
  const std::int64_t unit =
      std::max<std::int64_t>(value.exponent + bit_length(value.bits) - format.precision, format.least_unit());
  const std::int64_t cut = unit - value.exponent;  // bits that are cut off, 9 at least
  std::uint64_t kept = 0;
  if (cut <= 64) {
    kept = cut < 64 ? value.bits >> cut : 0;
    const std::uint64_t half = value.bits >> (cut - 1) & 1;
    const bool is_more = value.is_more || (value.bits & ((std::uint64_t{1} << (cut - 1)) - 1)) != 0;
    kept += half & static_cast<std::uint64_t>(is_more || (kept & 1) != 0);
  }
  const std::int64_t field = unit - format.least_unit();
  if (field >= format.special() - 1) return format.infinity();
  // A carry out of the significand makes the next exponent, and the largest one infinity.
  return (static_cast<std::uint64_t>(field) << (format.precision - 1)) + kept;
}

}  // namespace treefold
