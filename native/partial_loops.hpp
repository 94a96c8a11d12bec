// Exact partial sums, one block at a time.
//
// An addition is exact if its error is 0 (Knuth), so no flag of the processor is asked: the memory is what these loops
// wait for.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "exact_loops.hpp"
#include "partial.hpp"

namespace treefold::TREEFOLD_LEVEL {

template <class Format>
void read_block(const void* source, double* values, std::size_t length) {
  const auto* const elements = static_cast<const typename Format::Element*>(source);
  constexpr int N = lanes_of<double>;
  std::size_t i = 0;
  for (; length - i >= N; i += N) store<double, N>(values + i, read_as<double, Format, N>(elements + i));
  for (; i < length; ++i) values[i] = read_as<double, Format, 1>(elements + i);
}

inline bool is_finite(double number) { return number - number == 0; }

// Sums and products of narrow floats stay in float64's range, so what is not finite came as that, and stays.
inline bool add_single(double* sums, const double* values, double factor) {
  constexpr int N = lanes_of<double>;
  using Bits = Vector<std::uint64_t, N>;
  double totals[partial_length];
  Bits lost{};
  for (std::size_t i = 0; i < partial_length; i += N) {
    const Vector<double, N> sum = load<double, N>(sums + i), term = load<double, N>(values + i) * factor, total = sum + term;
    lost |= bits_as<Bits>(error_of_sum<N>(sum, term, total)) << 1;
    store<double, N>(totals + i, total);
  }
  std::uint64_t lanes[N];
  store<std::uint64_t, N>(lanes, lost);
  std::uint64_t any_lost = 0;
  for (int lane = 0; lane < N; ++lane) any_lost |= lanes[lane];
  if (any_lost != 0) {
    for (std::size_t i = 0; i < partial_length; ++i) {
      const double term = values[i] * factor;
      if (is_finite(totals[i]) && error_of_sum<1>(sums[i], term, totals[i]) != 0) return false;
    }
  }
  std::memcpy(sums, totals, sizeof totals);
  return true;
}

// A sum and the sum of the errors of its additions, in N elements.
template <int N>
struct PairSum {
  using Lanes = Vector<double, N>;
  Lanes sum, rest;
  Lanes fails{};  // not 0, NaN included: something would be lost

  void add(Lanes term) {
    const Lanes next = sum + term, lost = error_of_sum<N>(sum, term, next), both = rest + lost;
    const Lanes left = error_of_sum<N>(rest, lost, both);
    fails = fails + (left < Lanes{} ? -left : left);
    sum = next;
    rest = both;
  }
  // The same, but a zero says nothing: the first part of a product has told its sign.
  void add_further(Lanes term) {
    const Lanes before = sum;
    add(term);
    sum = term == Lanes{} ? before : sum;
  }
  void add_product(Lanes value, const Factor& factor, bool is_wide) {
    if (factor.pieces.empty()) return add(value);
    const Lanes zero{}, one = zero + 1.0, size = value < zero ? -value : value;
    Lanes upper = value, lower = zero;
    if (is_wide) {
      // Where products or their parts may leave the range, whole numbers tell.
      const Lanes out = size < zero + 0x1p-900 ? one : size > zero + 0x1p+900 ? one : zero;
      fails = size == zero ? fails : static_cast<Lanes>(fails + out);
      upper = upper_half<N>(value);
      lower = value - upper;
    }
    for (std::size_t piece = 0; piece < factor.pieces.size(); ++piece) {
      if (piece == 0) add(upper * factor.pieces[piece]);
      else add_further(upper * factor.pieces[piece]);
      if (is_wide) add_further(lower * factor.pieces[piece]);
    }
  }
};

inline bool add_pair(double* sums, double* rests, const double* values, const Factor& factor, bool is_wide) {
  constexpr int N = lanes_of<double>;
  double both[2][partial_length];
  Vector<double, N> fails{};
  for (std::size_t i = 0; i < partial_length; i += N) {
    PairSum<N> pair{load<double, N>(sums + i), load<double, N>(rests + i)};
    pair.add_product(load<double, N>(values + i), factor, is_wide);
    fails = fails + pair.fails;
    store<double, N>(both[0] + i, pair.sum);
    store<double, N>(both[1] + i, pair.rest);
  }
  if (any<N>(fails)) {
    for (std::size_t i = 0; i < partial_length; ++i) {
      if (is_finite(sums[i]) && is_finite(values[i])) {
        PairSum<1> pair{sums[i], rests[i]};
        pair.add_product(values[i], factor, is_wide);
        if (pair.fails != 0) return false;
        both[0][i] = pair.sum;
        both[1][i] = pair.rest;
      } else {
        both[0][i] = sums[i] + values[i];
        both[1][i] = 0;
      }
    }
  }
  std::memcpy(sums, both[0], sizeof both[0]);
  std::memcpy(rests, both[1], sizeof both[1]);
  return true;
}

// Whole numbers count units of 2^(form - 134): sums of 16-bit floats have no smaller ones than 2^-133.
constexpr int least_unit_of_halves = -133, bits_of_narrow = 31;
constexpr std::int32_t negative_zero = std::numeric_limits<std::int32_t>::min();  // no number

inline unsigned char narrow(const double* sums, void* numbers) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  std::uint64_t bits[partial_length], most = 0;
  std::memcpy(bits, sums, sizeof bits);
  for (const std::uint64_t one : bits) most = std::max(most, one & ~sign);
  const int exponent = static_cast<int>(most >> 52) - 1022;  // all are below 2^exponent
  const bool is_finite = exponent < 1025;
  const int unit = std::max(exponent - bits_of_narrow, least_unit_of_halves);
  const double scale = is_finite ? std::ldexp(1.0, -unit) : 0.0;
  std::int32_t made[partial_length];
  bool is_exact = is_finite;
  for (std::size_t i = 0; i < partial_length; ++i) {
    const double scaled = is_finite ? sums[i] * scale : 0.0;
    const auto number = static_cast<std::int32_t>(scaled);
    is_exact &= number == scaled;
    made[i] = bits[i] == sign ? negative_zero : number;
  }
  std::memcpy(numbers, made, sizeof made);
  return is_exact ? static_cast<unsigned char>(unit - least_unit_of_halves + 1) : 0;
}

inline void widen(const void* numbers, unsigned char form, double* sums) {
  std::int32_t read[partial_length];
  std::memcpy(read, numbers, sizeof read);
  const double unit = std::ldexp(1.0, form - 1 + least_unit_of_halves);
  for (std::size_t i = 0; i < partial_length; ++i) sums[i] = read[i] == negative_zero ? -0.0 : read[i] * unit;
}

template <class P>
void finish_block(const double* sums, const double* rests, const Divisor64& by, void* results, bool* fails) {
  constexpr int N = lanes_of<double>;
  using Lanes = Vector<double, N>;
  Divisor divisor;
  divisor.high = by.high;
  divisor.low = by.low;
  divisor.inverse = by.inverse;
  for (std::size_t i = 0; i < partial_length; i += N) {
    const Lanes zero{}, one = zero + 1.0;
    const Lanes sum = load<double, N>(sums + i), rest = rests != nullptr ? load<double, N>(rests + i) : zero;
    Finished<P, N> done = finish<P, N>(sum, rest, zero, divisor);
    if (P::is_double && divisor.inverse != 1) {
      // So far from the ends of the range that no error of a quotient can be below it.
      const auto out = [&](Lanes number, double least) {
        const Lanes size = number < zero ? -number : number;
        const Lanes is_out = size < zero + least ? one : size > zero + 0x1p+600 ? one : zero;
        return static_cast<Lanes>(size == zero ? zero : is_out);
      };
      done.fails = done.fails + out(sum, 0x1p-600) + out(rest, 0x1p-700);
    }
    std::memcpy(static_cast<typename P::Element*>(results) + i, &done.out, sizeof done.out);
    double lanes[N];
    store<double, N>(lanes, done.fails);
    for (int lane = 0; lane < N; ++lane) fails[i + lane] = lanes[lane] != 0;
  }
}

template <Dtype dtype, class Format>
void fill_partial(PartialLoops& loops) {
  constexpr int at = static_cast<int>(dtype);
  static_assert(at < partial_dtypes);
  loops.read[at] = &read_block<Format>;
  loops.finish[at] = &finish_block<Exact<dtype, Format, Op::mean, false>>;
}

inline PartialLoops partial_loops() {
  PartialLoops loops{};
  fill_partial<Dtype::float16, Half>(loops);
  fill_partial<Dtype::bfloat16, Brain>(loops);
  fill_partial<Dtype::float32, Plain<float>>(loops);
  fill_partial<Dtype::float64, Plain<double>>(loops);
  loops.add_single = &add_single;
  loops.add_pair = &add_pair;
  loops.narrow = &narrow;
  loops.widen = &widen;
  return loops;
}

}  // namespace treefold::TREEFOLD_LEVEL
