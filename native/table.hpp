// The loops of this level, by dtype, op and accumulation.
#pragma once

#include "partial_loops.hpp"
#include "special.hpp"
#include "whole_sums.hpp"

namespace treefold::TREEFOLD_LEVEL {

using F16 = Half;
using BF16 = Brain;
using F32Wide = Widened<float, double>;
using F32 = Plain<float>;
using F64 = Plain<double>;

template <Dtype dtype, class Format, class Result, Op op, Accumulate accumulate>
constexpr Loop loop_of = &fold_loop<Policy<dtype, Format, Result, op, accumulate>>;

// Complex numbers under SUM and MEAN are twice as many reals.
template <Loop loop>
void of_pairs(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
              std::size_t begin, std::size_t end, bool stream_out) {
  loop(sources, fold, targets, target_count, 2 * begin, 2 * end, stream_out);
}

inline void fill(Level& level, Dtype dtype, Op op, Loop exact, Loop native) {
  auto& loops = level.loops[static_cast<int>(dtype)][static_cast<int>(op)];
  loops[static_cast<int>(Accumulate::exact)] = exact;
  loops[static_cast<int>(Accumulate::native)] = native;
}

template <Dtype dtype, class Format, Op op, bool is_weighted = false>
constexpr Loop exact_of = &exact_loop<Exact<dtype, Format, op, is_weighted>>;

template <Dtype dtype, class Wide, class Native>
void fill_float(Level& level) {
  constexpr auto exact = Accumulate::exact, native = Accumulate::native;
  constexpr Loop least = loop_of<dtype, Native, Native, Op::min, exact>;
  constexpr Loop most = loop_of<dtype, Native, Native, Op::max, exact>;
  fill(level, dtype, Op::sum, exact_of<dtype, Native, Op::sum>, loop_of<dtype, Native, Native, Op::sum, native>);
  fill(level, dtype, Op::mean, exact_of<dtype, Native, Op::mean>, loop_of<dtype, Native, Native, Op::mean, native>);
  // MIN and MAX round nothing, so both ways of accumulating are one loop.
  fill(level, dtype, Op::min, least, least);
  fill(level, dtype, Op::max, most, most);
  fill(level, dtype, Op::product, loop_of<dtype, Wide, Wide, Op::product, exact>,
       loop_of<dtype, Native, Native, Op::product, native>);
  level.weighted_mean[static_cast<int>(dtype)] = exact_of<dtype, Native, Op::mean, true>;
  level.whole_sums[static_cast<int>(dtype)] = &whole_sum<Terms<Native, false>>;
  level.products[static_cast<int>(dtype)] = &whole_sum<Terms<Native, true>>;
}

// Sums and products of integers wrap, so that they need no sign.
template <Dtype dtype, class T, class Unsigned, class Mean>
void fill_integer(Level& level) {
  constexpr auto exact = Accumulate::exact;
  constexpr Loop sum = loop_of<dtype, Plain<Unsigned>, Plain<Unsigned>, Op::sum, exact>;
  constexpr Loop least = loop_of<dtype, Plain<T>, Plain<T>, Op::min, exact>;
  constexpr Loop most = loop_of<dtype, Plain<T>, Plain<T>, Op::max, exact>;
  constexpr Loop product = loop_of<dtype, Plain<Unsigned>, Plain<Unsigned>, Op::product, exact>;
  fill(level, dtype, Op::sum, sum, sum);
  if constexpr (sizeof(T) < 8) {
    // The sum is exact in float64, too, in which it is divided; 64-bit integers need the quotients of `integer_mean`.
    constexpr Loop few = loop_of<dtype, Widened<T, std::int64_t>, Mean, Op::mean, exact>;
    constexpr Loop mean = sizeof(T) < 4 ? few : &integer_mean_of_any_count<dtype, typename Mean::Element, few>;
    fill(level, dtype, Op::mean, mean, mean);
  } else {
    fill(level, dtype, Op::mean, &wide_integer_mean<std::is_signed_v<T>>, &wide_integer_mean<std::is_signed_v<T>>);
  }
  fill(level, dtype, Op::min, least, least);
  fill(level, dtype, Op::max, most, most);
  fill(level, dtype, Op::product, product, product);
  level.weighted_mean[static_cast<int>(dtype)] = &exact_integer_mean<dtype, typename Mean::Element>;
}

// Reads and writes bytes as a fold does, with one exclusive or for the arithmetic.
struct Traffic {
  using Format = Plain<std::uint64_t>;
  using Result = Format;
};

template <int N, int U>
inline void traffic_block(const void* const* sources, std::size_t count, void* const* targets, std::size_t target_count,
                          std::size_t at, bool stream_out) {
  using Bytes = std::uint8_t;
  constexpr std::size_t block_bytes = U > 1 ? N * U : 0;
  Vector<Bytes, N> mixed[U];
  prefetch_ahead<block_bytes>(static_cast<const Bytes*>(sources[0]) + at);
  each<U>([&](auto u) { mixed[u] = load<Bytes, N>(static_cast<const Bytes*>(sources[0]) + at + u * N); });
  for (std::size_t r = 1; r < count; ++r) {
    const Bytes* source = static_cast<const Bytes*>(sources[r]) + at;
    prefetch_ahead<block_bytes>(source);
    each<U>([&](auto u) { mixed[u] = static_cast<Vector<Bytes, N>>(mixed[u] ^ load<Bytes, N>(source + u * N)); });
  }
  write_block<Vector<Bytes, N>, U>(mixed, targets, target_count, at, stream_out);
}

inline void traffic(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                    std::size_t begin, std::size_t end, bool stream_out) {
  constexpr int N = vector_bytes ? vector_bytes : 1;
  constexpr int U = block_vectors;
  std::size_t at = begin;
  if (end - begin >= least_aligned) {
    const std::size_t aligned = begin + elements_to_line<std::uint8_t>(targets, target_count, begin);
    if constexpr (vector_bytes >= 16) {
      for (; aligned - at >= 16; at += 16) traffic_block<16, 1>(sources, fold.count, targets, target_count, at, false);
    }
    for (; at < aligned; ++at) traffic_block<1, 1>(sources, fold.count, targets, target_count, at, false);
  }
  for (; end - at >= static_cast<std::size_t>(N) * U; at += static_cast<std::size_t>(N) * U) {
    traffic_block<N, U>(sources, fold.count, targets, target_count, at, stream_out);
  }
  for (; at < end; ++at) traffic_block<1, 1>(sources, fold.count, targets, target_count, at, false);
  if (stream_out) stream_fence();
}

template <Dtype dtype, Dtype real, class Real, class Wide>
void fill_complex(Level& level) {
  constexpr auto exact = Accumulate::exact, native = Accumulate::native;
  fill(level, dtype, Op::sum, &of_pairs<exact_of<real, Plain<Real>, Op::sum>>,
       &of_pairs<loop_of<real, Plain<Real>, Plain<Real>, Op::sum, native>>);
  fill(level, dtype, Op::mean, &of_pairs<exact_of<real, Plain<Real>, Op::mean>>,
       &of_pairs<loop_of<real, Plain<Real>, Plain<Real>, Op::mean, native>>);
  fill(level, dtype, Op::product, &complex_product<real, Real, Wide, exact>, &complex_product<real, Real, Real, native>);
  level.weighted_mean[static_cast<int>(dtype)] = &of_pairs<exact_of<real, Plain<Real>, Op::mean, true>>;
}

Level make_level(const char* name) {
  Level level{};
  level.name = name;
  fill_float<Dtype::float16, F16, F16>(level);
  fill_float<Dtype::bfloat16, BF16, BF16>(level);
  fill_float<Dtype::float32, F32Wide, F32>(level);
  fill_float<Dtype::float64, F64, F64>(level);
  fill_integer<Dtype::int8, std::int8_t, std::uint8_t, F32Wide>(level);
  fill_integer<Dtype::int16, std::int16_t, std::uint16_t, F32Wide>(level);
  fill_integer<Dtype::int32, std::int32_t, std::uint32_t, F64>(level);
  fill_integer<Dtype::int64, std::int64_t, std::uint64_t, F64>(level);
  fill_integer<Dtype::uint8, std::uint8_t, std::uint8_t, F32Wide>(level);
  fill_integer<Dtype::uint16, std::uint16_t, std::uint16_t, F32Wide>(level);
  fill_integer<Dtype::uint32, std::uint32_t, std::uint32_t, F64>(level);
  fill_integer<Dtype::uint64, std::uint64_t, std::uint64_t, F64>(level);
  fill_complex<Dtype::complex64, Dtype::float32, float, double>(level);
  fill_complex<Dtype::complex128, Dtype::float64, double, double>(level);
  constexpr Loop all = loop_of<Dtype::boolean, Truth, Truth, Op::min, Accumulate::exact>;
  constexpr Loop any = loop_of<Dtype::boolean, Truth, Truth, Op::max, Accumulate::exact>;
  fill(level, Dtype::boolean, Op::min, all, all);
  fill(level, Dtype::boolean, Op::max, any, any);
  static const PartialLoops partials = partial_loops();
  level.partial = &partials;
  level.traffic = &traffic;
  level.certificate = &certificate;
  return level;
}

const Level& level() {
  static const Level made = make_level(TREEFOLD_LEVEL_NAME);
  return made;
}

}  // namespace treefold::TREEFOLD_LEVEL
