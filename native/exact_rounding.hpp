// Rounding of sums in float64: errors of additions and products, rounding to odd, and quotients of sums that are known to
// within an interval.
#pragma once

#include "elements.hpp"
#include "exact.hpp"
#include "loops.hpp"

namespace treefold::TREEFOLD_LEVEL {

// clang-format off
template <class Format> struct Precision;
template <> struct Precision<Half> { static constexpr int bits = 11, field_bits = 5; };
template <> struct Precision<Brain> { static constexpr int bits = 8, field_bits = 8; };
template <> struct Precision<Plain<float>> { static constexpr int bits = 24, field_bits = 8; };
template <> struct Precision<Plain<double>> { static constexpr int bits = 53, field_bits = 11; };

template <class T> struct UnsignedOf;
template <> struct UnsignedOf<std::uint16_t> { using type = std::uint16_t; };
template <> struct UnsignedOf<float> { using type = std::uint32_t; };
template <> struct UnsignedOf<double> { using type = std::uint64_t; };
// clang-format on

// A kind of fold: Format of the contributions and of the result; `is_weighted`: a MEAN by weights.
template <Dtype dtype_, class Format_, Op op_, bool is_weighted_>
struct Exact {
  using Format = Format_;
  using Element = typename Format::Element;
  static constexpr Dtype dtype = dtype_;
  static constexpr Op op = op_;
  static constexpr bool is_weighted = is_weighted_;
  static constexpr bool is_double = std::is_same_v<Element, double>;
  static constexpr bool is_short = sizeof(Element) == 2;
};

// a + b, and a itself where b is 0: -0 + 0 would be +0.
template <int N>
inline Vector<double, N> plus(Vector<double, N> a, Vector<double, N> b) {
  const Vector<double, N> zero{}, sum = a + b;
  return b == zero ? a : sum;
}

// The exact error of a + b, given the rounded sum (Knuth).
template <int N>
inline Vector<double, N> error_of_sum(Vector<double, N> a, Vector<double, N> b, Vector<double, N> sum) {
  const Vector<double, N> part = sum - a;
  return (a - (sum - part)) + (b - part);
}

template <int N>
inline Vector<double, N> upper_part(Vector<double, N> v) {  // 26 bits, rounded (Veltkamp)
  const Vector<double, N> far = v * 134217729.0;
  return far - (far - v);
}

// The exact error of a · b, given the rounded product, within bounds that callers check (Dekker).
template <int N>
inline Vector<double, N> error_of_product(Vector<double, N> a, Vector<double, N> b, Vector<double, N> product) {
  const Vector<double, N> a1 = upper_part<N>(a), b1 = upper_part<N>(b), a2 = a - a1, b2 = b - b1;
  return a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2);
}

// Rounds sum + error, |error| at most half a unit of the sum, to odd: if it is no float64 itself, to the neighbour with the
// last bit set. Rounding that to fewer bits next equals rounding once (Boldo and Melquiond).
template <int N>
inline Vector<double, N> to_odd(Vector<double, N> sum, Vector<double, N> error) {
  using Bits = Vector<std::uint64_t, N>;
  const Vector<double, N> zero{};
  const Bits bits = bits_as<Bits>(sum), signs = bits_as<Bits>(error) ^ bits;
  // One unit further from zero, or nearer to it if the error has the other sign.
  const Bits outward = Bits{} + 1u, step = outward - ((signs >> 63) << 1);
  const Vector<double, N> moved = bits_as<Vector<double, N>>(static_cast<Bits>(bits + (step & (Bits{} - (outward & ~bits)))));
  return error == zero ? sum : moved;
}

// Narrows float64 to float32 likewise; the value must be normal in float32.
template <int N>
inline Vector<float, N> narrow_to_odd(Vector<double, N> v) {
  using Bits = Vector<std::uint64_t, N>;
  constexpr std::uint64_t lost = (std::uint64_t{1} << 29) - 1;
  const Bits bits = bits_as<Bits>(v);
  const Bits odd = (((bits & lost) + lost) | bits) & ~lost;
  const Vector<double, N> kept = bits_as<Vector<double, N>>(odd);
  return convert<float, N>(static_cast<Vector<double, N>>(v == v ? kept : v));
}

// Rounds float64 to the format, after rounding to odd or where an earlier rounding does not matter.
template <class P, int N>
inline Vector<typename P::Element, N> rounded_to(Vector<double, N> v) {
  if constexpr (P::is_double) return canonical<double, N>(v);
  if constexpr (!P::is_double && !P::is_short) return convert<float, N>(canonical<double, N>(v));
  if constexpr (P::is_short) return P::Format::template pack<N>(canonical<float, N>(narrow_to_odd<N>(v)));
}

// Not 0 where rounding to the format through float32 is wrong: bfloat16 below float32's normal numbers.
template <class P, int N>
inline Vector<double, N> hazard(Vector<double, N> v) {
  const Vector<double, N> zero{}, one = zero + 1.0;
  if constexpr (std::is_same_v<typename P::Format, Brain>) {
    const Vector<double, N> size = v < zero ? -v : v;
    const Vector<double, N> small = size < zero + 0x1p-126 ? one : zero;
    return size == zero ? zero : small;
  } else {
    (void)v;
    return zero;
  }
}

template <int N>
inline bool any(Vector<double, N> v) {
  double lanes[N];
  store<double, N>(lanes, v);
  bool found = false;
  for (int i = 0; i < N; ++i) found |= lanes[i] != 0;
  return found;
}

// The divisor of a sum: high + low, scaled.
struct Divisor {
  double high = 1, low = 0;
  double inverse = 1;  // of a power of two; else 0
  // The factor of sums of the first tier if `multiplies`, else their divisor.
  double number = 1;
  bool multiplies = false;

  template <class P>
  static Divisor of(const Arithmetic& fold) {
    Divisor made;
    if constexpr (P::is_weighted) {
      made.high = fold.weights->are_split() ? fold.weights->sum_high() : 0;
      made.low = fold.weights->sum_low();
    } else if constexpr (P::op == Op::mean) {
      made.high = static_cast<double>(fold.count);
    }
    std::uint64_t bits = bits_as<std::uint64_t>(made.high);
    made.inverse = made.low == 0 && made.high != 0 && (bits << 12) == 0 ? 1 / made.high : 0;
    made.multiplies = made.inverse != 0 && !P::is_weighted;
    made.number = made.multiplies ? made.inverse : made.high;
    if constexpr (P::is_weighted) made.number = fold.weights->sum()[0];
    return made;
  }
};

template <class P, int N>
struct Finished {
  Vector<typename P::Element, N> out;
  Vector<double, N> fails;  // not 0: a lane that needs another tier
};

// Not 0 in the lanes where the two ends of an interval are rounded to different bits.
template <class P, int N>
inline Vector<double, N> differ(const Vector<typename P::Element, N> (&ends)[2]) {
  double lanes[N] = {};
  if (std::memcmp(&ends[0], &ends[1], sizeof ends[0]) != 0) {
    typename P::Element lower[N], upper[N];
    store<typename P::Element, N>(lower, ends[0]);
    store<typename P::Element, N>(upper, ends[1]);
    for (int i = 0; i < N; ++i) lanes[i] = std::memcmp(&lower[i], &upper[i], sizeof lower[i]) != 0;
  }
  return load<double, N>(lanes);
}

// Rounds (sum + error ± rest) / divisor, or reports that the interval does not decide it.
template <class P, int N>
inline Finished<P, N> finish(Vector<double, N> sum, Vector<double, N> error, Vector<double, N> rest, const Divisor& divisor) {
  using Lanes = Vector<double, N>;
  const Lanes zero{}, one = zero + 1.0;
  const auto magnitude = [&](Lanes v) { return static_cast<Lanes>(v < zero ? -v : v); };
  Lanes high = plus<N>(sum, error), low = error_of_sum<N>(sum, error, high), doubt;
  Lanes fails = high - high == zero ? zero : one;
  const auto guard = [&] {  // far from where quotients and their errors underflow
    if constexpr (P::is_double) {
      const Lanes size = magnitude(high);
      const Lanes out = size < zero + 0x1p-900 ? one : size > zero + 0x1p+900 ? one : zero;
      // A rest beside a sum of 0 may underflow when it is divided, and would pass for 0.
      const Lanes beside = rest == zero ? zero : one;
      fails = fails + (size == zero ? beside : out);
    }
  };
  if (divisor.inverse != 0) {
    if (divisor.inverse != 1) guard();
    high = high * divisor.inverse;
    low = low * divisor.inverse;
    const Lanes some = rest * (2 * divisor.inverse) + magnitude(low) * 0x1p-49;
    doubt = rest == zero ? zero : some;
  } else {
    guard();
    const Lanes all = zero + divisor.high;
    const Lanes first = high / all, product = first * all;
    const Lanes left = (high - product) - error_of_product<N>(first, all, product);  // exact
    const Lanes more = low - first * divisor.low;
    const Lanes whole = left + more;
    const Lanes second = whole / all, again = second * all;
    const Lanes some = (rest * 2.0 + (magnitude(left) + magnitude(low) + magnitude(first * divisor.low)) * 0x1p-49) / all;
    // If nothing was rounded, ties are decided, too.
    const Lanes lost = magnitude(error_of_sum<N>(left, more, whole)) +
                       magnitude((whole - again) - error_of_product<N>(second, all, again)) + rest;
    doubt = lost == zero && divisor.low == 0 ? zero : some;
    high = first;
    low = second;
  }
  Vector<typename P::Element, N> ends[2];
  each<2>([&](auto end) {
    const Lanes far = end ? static_cast<Lanes>(low + doubt) : static_cast<Lanes>(low - doubt);
    const Lanes near = plus<N>(high, far);
    if constexpr (P::is_double) {
      ends[end] = canonical<double, N>(near);
    } else {
      ends[end] = rounded_to<P, N>(to_odd<N>(near, error_of_sum<N>(high, far, near)));
      fails = fails + hazard<P, N>(near);
    }
  });
  return {ends[0], static_cast<Lanes>(fails + differ<P, N>(ends))};
}

}  // namespace treefold::TREEFOLD_LEVEL
