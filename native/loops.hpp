// The folds: one loop over elements, any format, any operation.
//
// Each loop reads a block of one source after the other into registers, accumulates it there, rounds once and writes
// the result to every target. A target may be one of the sources: a block is read from all of them before it is written.
#pragma once

#include "elements.hpp"
#include "formats.hpp"
#include "overflow.hpp"
#include "vectors.hpp"

namespace treefold::TREEFOLD_LEVEL {

// Vectors in a block. They are enough that no addition waits for the one before. They are few enough that a block's streamed
// writes, to eight targets or so, do not need all line buffers at once (8 vectors: 10-20 % slower there).
constexpr int block_vectors = 4;

template <class Value>
constexpr int lanes_of = vector_bytes ? vector_bytes / static_cast<int>(sizeof(Value)) : 1;

template <class A>
inline A smaller(A a, A b) {
  return a < b ? a : b;
}
template <class A>
inline A larger(A a, A b) {
  return a > b ? a : b;
}

// Returns the smaller or larger value. NaN wins from either side; of two zeros, MIN takes -0 and MAX takes +0.
template <class Bits, bool is_min, class A>
inline A extreme(A a, A b) {
  const A chosen = is_min ? smaller(a, b) : larger(a, b);
  const Bits x = bits_as<Bits>(a), y = bits_as<Bits>(b);
  // Used where a == b: equal numbers have equal bits unless both are zeros, so this changes nothing but a zero's sign.
  const A zero = bits_as<A>(static_cast<Bits>(is_min ? (x | y) : (x & y)));
  const A ordered = a == b ? zero : chosen;
  const A right = b == b ? ordered : b;
  return a == a ? right : a;
}

template <class T>
struct BitsOf {
  using type = T;
};
template <>
struct BitsOf<float> {
  using type = std::uint32_t;
};
template <>
struct BitsOf<double> {
  using type = std::uint64_t;
};
template <class T>
constexpr bool is_real = !std::is_same_v<typename BitsOf<T>::type, T>;

template <Op op, class Value, int N>
inline Vector<Value, N> combine(Vector<Value, N> a, Vector<Value, N> b) {
  if constexpr (op == Op::sum || op == Op::mean) return static_cast<Vector<Value, N>>(a + b);
  if constexpr (op == Op::product) {
    // One uint16 times another is an int in C++, and may not fit it.
    if constexpr (N == 1 && sizeof(Value) < 4) {
      return static_cast<Value>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
    } else {
      return a * b;
    }
  }
  if constexpr (op == Op::min || op == Op::max) {
    if constexpr (is_real<Value>) {
      return extreme<Vector<typename BitsOf<Value>::type, N>, op == Op::min>(a, b);
    } else {
      return op == Op::min ? smaller(a, b) : larger(a, b);
    }
  }
}

// Tells whether any lane is infinite or NaN: x - x is 0 for all others.
template <class Value, int N, int U>
inline bool any_not_finite(const Vector<Value, N> (&values)[U]) {
  Vector<Value, N> probe = values[0] - values[0];
  each<U>([&](auto u) { probe += values[u] - values[u]; });
#if TREEFOLD_VECTORS && defined(__AVX512F__)
  if constexpr (sizeof(probe) == 64 && sizeof(Value) == 8) return _mm512_cmp_pd_mask(probe, probe, _CMP_UNORD_Q) != 0;
  if constexpr (sizeof(probe) == 64 && sizeof(Value) == 4) return _mm512_cmp_ps_mask(probe, probe, _CMP_UNORD_Q) != 0;
#endif
  Value lanes[N];
  store<Value, N>(lanes, probe);
  bool found = false;
  for (int i = 0; i < N; ++i) found |= !(lanes[i] == lanes[i]);
  return found;
}

template <class Value, int N>
inline Vector<Value, N> magnitude(Vector<Value, N> v) {
  using Bits = typename BitsOf<Value>::type;
  return bits_as<Vector<Value, N>>(static_cast<Vector<Bits, N>>(bits_as<Vector<Bits, N>>(v) & (~Bits{0} >> 1)));
}

// Replaces every NaN by the canonical one.
template <class Value, int N>
inline Vector<Value, N> canonical(Vector<Value, N> v) {
  const Vector<Value, N> nan = Vector<Value, N>{} + std::numeric_limits<Value>::quiet_NaN();
  return v == v ? v : nan;
}

// A kind of fold: Format of the contributions, Result format, op, and accumulation.
template <Dtype dtype_, class Format_, class Result_, Op op_, Accumulate accumulate_>
struct Policy {
  using Format = Format_;
  using Result = Result_;
  using Value = typename Format::Value;
  static constexpr Dtype dtype = dtype_;
  static constexpr Op op = op_;
  static constexpr bool is_exact = accumulate_ == Accumulate::exact;
  // A product of floats is accumulated wide, and may leave the accumulator's range before it is rounded.
  static constexpr bool multiplies = is_exact && op == Op::product && is_real<Value>;
};

// Narrows a float64 with a sticky last bit ("round to odd"), so that rounding the result again equals rounding once.
template <class Value>
inline Value round_to_odd(double value) {
  return value;
}
template <>
inline float round_to_odd<float>(double value) {
  const float near = static_cast<float>(value);
  // Exact, infinite or NaN: no bit was lost that could be remembered.
  if (!(static_cast<double>(near) != value) || near - near != 0) return near;
  std::uint32_t bits = bits_as<std::uint32_t>(near);
  // First towards zero, then the last bit is set. An odd mantissa is never a tie of the narrower format, so the second
  // rounding has the direction of the exact value's (Boldo and Melquiond 2008).
  const bool is_beyond = value < 0 ? static_cast<double>(near) < value : static_cast<double>(near) > value;
  return bits_as<float>((is_beyond ? bits - 1 : bits) | 1u);
}

// Repeats the fold of those lanes of a block that are not finite.
template <class P, int N, int U>
inline void settle_block(Vector<typename P::Value, N> (&total)[U], const void* const* sources, const Arithmetic& fold,
                         std::size_t at) {
  using Value = typename P::Value;
  for (int u = 0; u < U; ++u) {
    Value lanes[N];
    store<Value, N>(lanes, total[u]);
    for (int i = 0; i < N; ++i) {
      if (!(lanes[i] - lanes[i] == 0)) {
        lanes[i] = round_to_odd<Value>(settle_product(P::dtype, sources, fold.count, at + u * N + i));
      }
    }
    total[u] = load<Value, N>(lanes);
  }
}

// Turns the accumulated contributions of a block into results, in the format that is written.
template <class P, int N, int U>
inline void finish_block(Vector<typename P::Value, N> (&total)[U], const void* const* sources, const Arithmetic& fold,
                         std::size_t at, Vector<typename P::Result::Element, N> (&out)[U]) {
  using Value = typename P::Value;
  if constexpr (P::op == Op::mean && !is_real<Value>) {  // float64 holds these sums of integers exactly
    const double divisor = static_cast<double>(fold.count);
    each<U>([&](auto u) {
      const Vector<double, N> quotient = convert<double, N>(total[u]) / divisor;
      out[u] = P::Result::template pack<N>(convert<typename P::Result::Value, N>(quotient));
    });
  } else {
    if constexpr (P::op == Op::mean) {
      const Value divisor = static_cast<Value>(fold.count);
      each<U>([&](auto u) { total[u] = total[u] / divisor; });
    }
    if constexpr (P::multiplies) {
      if (any_not_finite<Value, N, U>(total)) settle_block<P, N, U>(total, sources, fold, at);
    }
    if constexpr (is_real<Value> && (P::op == Op::min || P::op == Op::max || P::multiplies)) {
      each<U>([&](auto u) { total[u] = canonical<Value, N>(total[u]); });
    }
    each<U>([&](auto u) { out[u] = P::Result::template pack<N>(total[u]); });
  }
}

template <class P, int N, int U>
inline void fold_block(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                       std::size_t at, bool stream_out) {
  using Format = typename P::Format;
  using Value = typename P::Value;
  using Lanes = Vector<Value, N>;
  using Element = typename Format::Element;
  using Written = typename P::Result::Element;
  Lanes total[U], low[P::multiplies ? U : 1];  // the smallest partial product of no zero
  constexpr std::size_t block_bytes = U > 1 ? sizeof(Element) * N * U : 0;
  const Element* first = static_cast<const Element*>(sources[0]) + at;
  prefetch_ahead<block_bytes>(first);
  each<U>([&](auto u) {
    total[u] = Format::template load<N>(first + u * N);
    if constexpr (P::multiplies) low[u] = Lanes{} + std::numeric_limits<Value>::infinity();
  });
  for (std::size_t r = 1; r < fold.count; ++r) {
    const Element* source = static_cast<const Element*>(sources[r]) + at;
    prefetch_ahead<block_bytes>(source);
    each<U>([&](auto u) {
      const Lanes value = Format::template load<N>(source + u * N);
      [[maybe_unused]] const Lanes before = total[u];
      total[u] = combine<P::op, Value, N>(total[u], value);
      if constexpr (!P::is_exact && sizeof(Value) != sizeof(Element)) total[u] = Format::template narrow<N>(total[u]);
      if constexpr (P::multiplies) {
        const Lanes size = magnitude<Value, N>(total[u]);
        low[u] = ((size < low[u]) & (before != Lanes{}) & (value != Lanes{})) ? size : low[u];
      }
    });
  }
  if constexpr (P::multiplies) {  // a partial product below the normal numbers has lost digits, and is computed again
    const Lanes zero{}, least = zero + std::numeric_limits<Value>::min();
    const Lanes lost = zero + std::numeric_limits<Value>::infinity();
    each<U>([&](auto u) { total[u] = low[u] < least ? lost : total[u]; });
  }
  Vector<Written, N> out[U];
  finish_block<P, N, U>(total, sources, fold, at, out);
  write_block<Vector<Written, N>, U>(out, targets, target_count, at * sizeof(Written), stream_out);
}

// Ranges of fewer bytes are not worth a start at a cache line.
constexpr std::size_t least_aligned = 4096;

// How many elements lie before the first whole cache line of the first target; 0 if none begins with an element.
template <class Written>
inline std::size_t elements_to_line(void* const* targets, std::size_t target_count, std::size_t at) {
  if (target_count == 0) return 0;
  // Unsigned negation: 64 divides 2^64, so the remainder is the distance to the next line.
  const std::size_t bytes = -reinterpret_cast<std::uintptr_t>(static_cast<Written*>(targets[0]) + at) % 64;
  return bytes % sizeof(Written) == 0 ? bytes / sizeof(Written) : 0;
}

template <class P>
void fold_loop(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
               std::size_t begin, std::size_t end, bool stream_out) {
  constexpr int N = lanes_of<typename P::Value>;
  constexpr int U = block_vectors;
  constexpr std::size_t length = static_cast<std::size_t>(N) * U;
  std::size_t at = begin;
  if (end - begin >= least_aligned / sizeof(typename P::Result::Element)) {
    // Streamed stores need aligned addresses, and a line that is written whole is not read from memory first.
    const std::size_t aligned = begin + elements_to_line<typename P::Result::Element>(targets, target_count, begin);
    for (; at < aligned; ++at) fold_block<P, 1, 1>(sources, fold, targets, target_count, at, false);
  }
  for (; end - at >= length; at += length) {
    fold_block<P, N, U>(sources, fold, targets, target_count, at, stream_out);
  }
  if constexpr (length > 1) {
    for (; end - at >= static_cast<std::size_t>(N); at += N) {
      fold_block<P, N, 1>(sources, fold, targets, target_count, at, false);
    }
  }
  for (; at < end; ++at) fold_block<P, 1, 1>(sources, fold, targets, target_count, at, false);
  // At the end of every range, on the thread that wrote it: a fence orders the writes of its own thread alone.
  if (stream_out) stream_fence();
}

}  // namespace treefold::TREEFOLD_LEVEL
