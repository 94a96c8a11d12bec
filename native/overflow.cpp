#include "overflow.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.hpp"

namespace treefold {

using of_no_level::bits_as;
using of_no_level::half_to_float;

namespace {

// Returns (whole·count + rest) / count, rounded once.
double rounded_quotient(std::uint64_t whole, std::uint64_t rest, std::uint64_t count) {
  constexpr std::uint64_t exact = std::uint64_t{1} << 53;
  // Both the numerator and the divisor are exact as double then, and one division rounds once.
  if (whole < exact / count) return static_cast<double>(whole * count + rest) / static_cast<double>(count);
  // 57 bits of the quotient with a sticky last bit ("round to odd"): rounding them to 53 bits equals rounding once.
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
    default: return 0;  // complex numbers come as reals, and bool never gets here
  }
}

// The contributions to one element, in replica order.
struct Contributions {
  Dtype dtype;
  const void* const* sources;
  std::size_t count, at;

  double operator[](std::size_t r) const { return element(dtype, sources[r], at); }
};

// A number mantissa · 2^exponent with an unbounded exponent; the mantissa is 0.5 to 1, or 0, infinite or NaN.
struct Scaled {
  double mantissa;
  std::int64_t exponent;

  // The exponent of 0, of infinities and of NaN: below all others, so that a sum takes that of the other term.
  static constexpr std::int64_t none = -(std::int64_t{1} << 40);

  Scaled(double value, std::int64_t shift = 0) {
    int carry = 0;
    mantissa = std::frexp(value, &carry);
    exponent = mantissa != 0 && std::isfinite(mantissa) ? shift + carry : none;
  }
  // The value times 2^shift, rounded once more where that is denormal.
  double times_power(std::int64_t shift) const {
    constexpr std::int64_t beyond = 5000;  // scaling by it gives 0 or infinity
    return std::ldexp(mantissa, static_cast<int>(std::clamp(exponent + shift, -beyond, beyond)));
  }
  double in_bounds() const { return times_power(0); }
};

Scaled operator*(const Scaled& a, const Scaled& b) { return {a.mantissa * b.mantissa, a.exponent + b.exponent}; }
Scaled operator-(const Scaled& a) {
  Scaled negative = a;
  negative.mantissa = -a.mantissa;
  return negative;
}
Scaled operator+(const Scaled& a, const Scaled& b) {
  // Rounded as double rounds: a term that underflows here is too small to count.
  const std::int64_t exponent = std::max(a.exponent, b.exponent);
  return {a.times_power(-exponent) + b.times_power(-exponent), exponent};
}

double scaled_product(const Contributions& values) {
  Scaled total = values[0];
  for (std::size_t r = 1; r < values.count; ++r) total = total * values[r];
  return total.in_bounds();
}

}  // namespace

double settle_product(Dtype dtype, const void* const* sources, std::size_t count, std::size_t at) {
  return scaled_product({dtype, sources, count, at});
}

Parts settle_complex_product(Dtype real, const void* const* sources, std::size_t count, std::size_t at) {
  const Contributions reals{real, sources, count, 2 * at}, imaginaries{real, sources, count, 2 * at + 1};
  Scaled re = reals[0], im = imaginaries[0];
  for (std::size_t r = 1; r < count; ++r) {
    const Scaled x = reals[r], y = imaginaries[r];
    const Scaled both = re * x + -(im * y);
    im = re * y + im * x;
    // After both parts are computed: `im` needs the old `re`.
    re = both;
  }
  return {re.in_bounds(), im.in_bounds()};
}

double integer_mean(const void* const* sources, std::size_t count, std::size_t at, bool is_signed) {
  // Every value is q·n + r with 0 <= r < n, so the floor of the mean is Σq + Σr / n. If Σq wraps, it wraps back.
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
