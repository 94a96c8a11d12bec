#include "exact.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "floating_mode.hpp"
#include "whole.hpp"

namespace treefold {

namespace {

bool is_float(Dtype dtype) { return dtype <= Dtype::float64; }

BinaryFormat result_format(Dtype dtype) {
  switch (dtype) {
    case Dtype::float16: return {16, 11};
    case Dtype::bfloat16: return {16, 8};
    case Dtype::float32:
    case Dtype::int8:
    case Dtype::int16:
    case Dtype::uint8:
    case Dtype::uint16: return {32, 24};
    default: return {64, 53};
  }
}

template <class T>
T read(const void* source, std::size_t at) {
  T value;
  std::memcpy(&value, static_cast<const char*>(source) + at * sizeof(T), sizeof value);
  return value;
}

Number of_signed(std::int64_t value) {
  Number number;
  number.is_negative = value < 0;
  number.significand = value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
  return number;
}

Number of_unsigned(std::uint64_t value) {
  Number number;
  number.significand = value;
  return number;
}

Number number_of(Dtype dtype, const void* source, std::size_t at) {
  switch (dtype) {
    case Dtype::float16:
    case Dtype::bfloat16: return of_float(read<std::uint16_t>(source, at), result_format(dtype));
    case Dtype::float32: return of_float(read<std::uint32_t>(source, at), result_format(dtype));
    case Dtype::float64: return of_float(read<std::uint64_t>(source, at), result_format(dtype));
    case Dtype::int8: return of_signed(read<std::int8_t>(source, at));
    case Dtype::int16: return of_signed(read<std::int16_t>(source, at));
    case Dtype::int32: return of_signed(read<std::int32_t>(source, at));
    case Dtype::int64: return of_signed(read<std::int64_t>(source, at));
    case Dtype::uint8: return of_unsigned(read<std::uint8_t>(source, at));
    case Dtype::uint16: return of_unsigned(read<std::uint16_t>(source, at));
    case Dtype::uint32: return of_unsigned(read<std::uint32_t>(source, at));
    default: return of_unsigned(read<std::uint64_t>(source, at));
  }
}

// A sum in limbs of 32 bits. Each limb is a signed 64-bit number, so that carries wait until everything is added.
class Sum {
 public:
  // Room for numbers below 2^bits, and for summands that begin at any bit.
  explicit Sum(std::size_t bits) : limbs_(bits / limb_bits + 4) {}

  void add(std::uint64_t number, std::size_t shift, bool is_negative) {
    const std::size_t limb = shift / limb_bits, offset = shift % limb_bits;
    const std::uint64_t low = (number & limb_mask) << offset, high = (number >> limb_bits) << offset;
    const std::uint64_t middle = (low >> limb_bits) + (high & limb_mask);
    const std::int64_t parts[] = {static_cast<std::int64_t>(low & limb_mask), static_cast<std::int64_t>(middle),
                                  static_cast<std::int64_t>(high >> limb_bits)};
    for (std::size_t i = 0; i < 3; ++i) limbs_[limb + i] += is_negative ? -parts[i] : parts[i];
  }

  // Returns the magnitude and whether the sum is negative.
  Natural magnitude(bool& is_negative) {
    is_negative = carry() < 0;
    if (is_negative) {
      // The limbs of a negative number hold a power of two more than the number.
      for (std::int64_t& limb : limbs_) limb = -limb;
      carry();
    }
    Natural number(limbs_.begin(), limbs_.end());
    trim(number);
    return number;
  }

 private:
  std::int64_t carry() {
    std::int64_t carried = 0;
    for (std::int64_t& limb : limbs_) {
      const std::int64_t total = limb + carried;
      limb = total & static_cast<std::int64_t>(limb_mask);
      carried = total >> limb_bits;
    }
    return carried;
  }

  std::vector<std::int64_t> limbs_;
};

}  // namespace

Weights::Weights(std::vector<std::uint32_t> words, std::size_t words_each) : words_(std::move(words)), words_each_(words_each) {
  Sum total(words_each * limb_bits);
  for (std::size_t i = 0; i < words_.size(); ++i) total.add(words_[i], i % words_each * limb_bits, false);
  bool is_negative = false;
  sum_ = total.magnitude(is_negative);
  are_small_ = bit_length(sum_) <= 29;
  if (are_small_) {
    for (std::size_t i = 0; i < count(); ++i) numbers_.push_back((*this)[i][0]);
  }
  split();
}

bool Weights::has_zero() const {
  for (std::size_t i = 0; i < count(); ++i) {
    const std::uint32_t* const words = (*this)[i];
    if (std::all_of(words, words + words_each_, [](std::uint32_t word) { return word == 0; })) return true;
  }
  return count() == 0;
}

void Weights::split() {
  const PlainArithmetic mode;
  const std::int64_t length = bit_length(sum_);
  const auto scaled = [&](const Natural& number, double& value) {
    // 53 bits were enough if nothing is left after correct rounding to them.
    Natural rest = number;
    trim(rest);
    const std::int64_t excess = std::max<std::int64_t>(bit_length(rest) - 53, 0);
    std::uint64_t top = 0;
    for (std::int64_t bit = 0; bit < std::min<std::int64_t>(bit_length(rest), 53); ++bit) {
      const std::int64_t at = excess + bit;
      top |= static_cast<std::uint64_t>(rest[static_cast<std::size_t>(at / limb_bits)] >> at % limb_bits & 1) << bit;
    }
    Natural cut(rest);
    value = std::ldexp(static_cast<double>(top), static_cast<int>(excess - length));
    const std::size_t whole = static_cast<std::size_t>(excess / limb_bits);
    for (std::size_t i = 0; i < whole; ++i)
      if (cut[i] != 0) return false;
    return whole >= cut.size() || (cut[whole] & ((std::uint64_t{1} << excess % limb_bits) - 1)) == 0;
  };
  constexpr double least = 0x1p-300;
  for (std::size_t i = 0; i < count(); ++i) {
    double value = 0;
    if (!scaled(Natural((*this)[i], (*this)[i] + words_each_), value) || value < least) return;
    // Two halves of 26 bits, the lower with a sign (Veltkamp).
    const double far = value * 134217729.0;
    const double upper = far - (far - value);
    scaled_.push_back(value);
    high_.push_back(upper);
    low_.push_back(value - upper);
  }
  scaled(sum_, sum_high_);
  // The rest of the sum, if 53 bits hold it.
  Natural rest = sum_;
  const std::int64_t excess = std::max<std::int64_t>(length - 53, 0);
  rest.resize(static_cast<std::size_t>((excess + limb_bits - 1) / limb_bits));
  if (!rest.empty() && excess % limb_bits != 0) rest.back() &= (1u << excess % limb_bits) - 1;
  trim(rest);
  are_split_ = scaled(rest, sum_low_);
}

std::uint64_t exact_bits(Dtype dtype, Op op, const void* const* sources, const Arithmetic& fold, std::size_t at) {
  const BinaryFormat format = result_format(dtype);
  bool has_plus = false, has_minus = false, has_nan = false, are_negative_zeros = is_float(dtype);
  int least = 1 << 20, most = -(1 << 20);
  for (std::size_t r = 0; r < fold.count; ++r) {
    const Number number = number_of(dtype, sources[r], at);
    has_nan |= number.is_nan;
    has_plus |= number.is_infinite && !number.is_negative;
    has_minus |= number.is_infinite && number.is_negative;
    are_negative_zeros &= number.is_negative && number.significand == 0;
    if (number.significand != 0) {
      least = std::min(least, number.exponent);
      most = std::max(most, number.exponent + 64);
    }
  }
  if (has_nan || (has_plus && has_minus)) return format.nan();
  if (has_plus) return format.infinity();
  if (has_minus) return format.infinity() | format.sign();
  if (least > most) return are_negative_zeros ? format.sign() : 0;
  const Weights* const weights = fold.weights;
  const std::size_t weight_bits = weights != nullptr ? weights->sum().size() * limb_bits : 0;
  Sum total(static_cast<std::size_t>(most - least) + weight_bits + bit_length(std::uint64_t{fold.count}));
  for (std::size_t r = 0; r < fold.count; ++r) {
    const Number number = number_of(dtype, sources[r], at);
    if (number.significand == 0) continue;
    const auto shift = static_cast<std::size_t>(number.exponent - least);
    if (weights == nullptr) {
      total.add(number.significand, shift, number.is_negative);
      continue;
    }
    for (std::size_t word = 0; word < weights->words_each(); ++word) {
      const std::uint64_t weight = (*weights)[r][word];
      const std::size_t place = shift + word * limb_bits;
      total.add((number.significand & limb_mask) * weight, place, number.is_negative);
      total.add((number.significand >> limb_bits) * weight, place + limb_bits, number.is_negative);
    }
  }
  bool is_negative = false;
  const Natural magnitude = total.magnitude(is_negative);
  if (magnitude.empty()) return 0;
  Natural divisor{1};
  if (weights != nullptr) {
    divisor = weights->sum();
  } else if (op == Op::mean) {
    divisor = {static_cast<std::uint32_t>(fold.count), static_cast<std::uint32_t>(std::uint64_t{fold.count} >> limb_bits)};
    trim(divisor);
  }
  Quotient quotient = divide(magnitude, divisor);
  quotient.exponent += least;
  return rounded(quotient, format) | (is_negative ? format.sign() : 0);
}

}  // namespace treefold
