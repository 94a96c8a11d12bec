#include "rare.hpp"

#include <cmath>
#include <cstring>

namespace {
#include "half.hpp"
}

namespace treefold {

namespace {

// ⌈log₂ count⌉: sums of `count` values scaled by 2 to minus this stay below the largest of them.
int doublings(std::size_t count) {
  int exponent = 0;
  while ((std::size_t{1} << exponent) < count) ++exponent;
  return exponent;
}

// (whole·count + rest) / count, rounded once.
double rounded_quotient(std::uint64_t whole, std::uint64_t rest, std::uint64_t count) {
  constexpr std::uint64_t exact = std::uint64_t{1} << 53;
  if (whole < exact / count) return static_cast<double>(whole * count + rest) / static_cast<double>(count);
  // 57 bits of the quotient with a sticky last bit ("round to odd"): rounding those to 53 is rounding once.
  int exponent = 0;
  std::frexp(static_cast<double>(whole), &exponent);
  const int shift = exponent - 57;
  std::uint64_t bits, lost;
  if (shift > 0) {
    bits = whole >> shift;
    lost = (whole & ((std::uint64_t{1} << shift) - 1)) | rest;
  } else {
    bits = (whole << -shift) + (rest << -shift) / count;
    lost = (rest << -shift) % count;
  }
  return std::ldexp(static_cast<double>(bits | (lost != 0)), shift);
}

double element(Dtype dtype, const void* source, std::size_t at) {
  switch (dtype) {
    case Dtype::float16: return half_to_float(static_cast<const std::uint16_t*>(source)[at]);
    case Dtype::bfloat16: return bits_as<float>(std::uint32_t{static_cast<const std::uint16_t*>(source)[at]} << 16);
    case Dtype::float32: return static_cast<const float*>(source)[at];
    case Dtype::float64: return static_cast<const double*>(source)[at];
    case Dtype::int8: return static_cast<const std::int8_t*>(source)[at];
    case Dtype::int16: return static_cast<const std::int16_t*>(source)[at];
    case Dtype::int32: return static_cast<const std::int32_t*>(source)[at];
    case Dtype::int64: return static_cast<double>(static_cast<const std::int64_t*>(source)[at]);
    case Dtype::uint8: return static_cast<const std::uint8_t*>(source)[at];
    case Dtype::uint16: return static_cast<const std::uint16_t*>(source)[at];
    case Dtype::uint32: return static_cast<const std::uint32_t*>(source)[at];
    case Dtype::uint64: return static_cast<double>(static_cast<const std::uint64_t*>(source)[at]);
    default: return 0;  // complex numbers come as reals, and bool is never settled
  }
}

// The contributions to one element, as they come.
struct Contributions {
  Dtype dtype;
  const void* const* sources;
  std::size_t count, at;

  double operator[](std::size_t r) const { return element(dtype, sources[r], at); }
  bool are_finite() const {
    for (std::size_t r = 0; r < count; ++r) {
      if (!std::isfinite((*this)[r])) return false;
    }
    return true;
  }
};

double rescaled_sum(const Contributions& values, double divisor) {
  const int exponent = doublings(values.count);
  double total = std::ldexp(values[0], -exponent);
  for (std::size_t r = 1; r < values.count; ++r) total += std::ldexp(values[r], -exponent);
  if (divisor != 0) total /= divisor;
  return std::ldexp(total, exponent);
}

double rescaled_weighted_mean(const Contributions& values, const double* weights, double scale) {
  const int exponent = doublings(values.count);
  double total = (weights[0] / scale) * std::ldexp(values[0], -exponent);
  for (std::size_t r = 1; r < values.count; ++r) total += (weights[r] / scale) * std::ldexp(values[r], -exponent);
  return std::ldexp(total, exponent);
}

double rescaled_product(const Contributions& values) {
  int exponent = 0;
  double mantissa = std::frexp(values[0], &exponent);
  long long sum = exponent;
  for (std::size_t r = 1; r < values.count; ++r) {
    int shift = 0, carry = 0;
    const double factor = std::frexp(values[r], &shift);
    mantissa = std::frexp(mantissa * factor, &carry);
    sum += shift + carry;
  }
  const long long bound = 100000;  // far beyond every exponent, and an int
  return std::ldexp(mantissa, static_cast<int>(sum > bound ? bound : sum < -bound ? -bound : sum));
}

}  // namespace

double settle(Dtype dtype, Op op, const void* const* sources, const Arithmetic& fold, std::size_t at, double total) {
  const Contributions values{dtype, sources, fold.count, at};
  if (!values.are_finite()) return total;
  if (op == Op::product) return rescaled_product(values);
  return rescaled_sum(values, op == Op::mean ? static_cast<double>(fold.count) : 0);
}

double settle_weighted(Dtype dtype, const void* const* sources, const Arithmetic& fold, std::size_t at, double total) {
  const Contributions values{dtype, sources, fold.count, at};
  return values.are_finite() ? rescaled_weighted_mean(values, fold.weights, fold.weight_sum) : total;
}

double integer_mean(const void* const* sources, std::size_t count, std::size_t at, bool is_signed) {
  // Every value is q·n + r with 0 <= r < n: the sum's floor is Σq + Σr / n, and what overflows on the way wraps back.
  const std::uint64_t n = count;
  std::uint64_t whole = 0, rest = 0;
  for (std::size_t r = 0; r < count; ++r) {
    const std::uint64_t value = static_cast<const std::uint64_t*>(sources[r])[at];
    if (is_signed && static_cast<std::int64_t>(value) < 0) {
      const std::uint64_t below = ~value;  // -(value + 1)
      whole -= below / n + 1;
      rest += n - 1 - below % n;
    } else {
      whole += value / n;
      rest += value % n;
    }
  }
  whole += rest / n;
  rest %= n;
  if (!is_signed || static_cast<std::int64_t>(whole) >= 0) return rounded_quotient(whole, rest, n);
  std::uint64_t size = ~whole + 1;  // of the floor; the quotient lies above it by rest / n
  if (rest != 0) {
    size -= 1;
    rest = n - rest;
  }
  return -rounded_quotient(size, rest, n);
}

}  // namespace treefold
