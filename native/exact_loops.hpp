// Exact sums and means of floats, rounded once.
//
// A block of elements goes through tiers, each of which gives the one right result or declines:
//  1. Additions in an accumulator so wide that they usually are exact; a certificate proves that they were.
//  2. Sums in float64, and an interval for the errors of their additions. The result is right if both ends of it are rounded
//     alike (Ziv). Not for float64, where they never are.
//  3. Sums with the errors of their additions (Knuth), and an interval for what remains.
//  4. Whole numbers of any size, element by element (exact.cpp).
// docs/how/numbers.md has the proofs. A block is read from all sources before it is written, as in the other loops.
#pragma once

#include "exact_rounding.hpp"
#include "floating_mode.hpp"
#include "window.hpp"

namespace treefold::TREEFOLD_LEVEL {

constexpr std::size_t exact_length = 256;  // elements of a block: its sums stay in the first-level cache
// Contributions for which the bound of round_interval is proved.
constexpr std::size_t most_in_interval = std::size_t{1} << 16;

inline int ceil_log2(std::uint64_t number) {
  int bits = 0;
  while (bits < 64 && (std::uint64_t{1} << bits) < number) ++bits;
  return bits;
}

// Splits a float64 into its upper 26 bits and the rest, exactly; beyond 2^1024 / 2^27 the rest is NaN or infinite.
template <int N>
inline Vector<double, N> upper_half(Vector<double, N> v) {
  using Bits = Vector<std::uint64_t, N>;
  return bits_as<Vector<double, N>>(static_cast<Bits>(bits_as<Bits>(v) & (~std::uint64_t{0} << 27)));
}

template <class Value, class Format, int N>
inline Vector<Value, N> read_as(const typename Format::Element* p) {
  if constexpr (std::is_same_v<Value, typename Format::Value>) {
    return Format::template load<N>(p);
  } else {
    return convert<Value, N>(Format::template load<N>(p));
  }
}

// The memory of a block: first its sums; for float64 those of the upper halves, then those of the rest. The result
// overwrites them from the beginning as they are read. So the block needs little of the first-level cache, which
// contributions that begin at the same offset of a page fill alone. By memcpy: it holds more than one type.
struct Scratch {
  alignas(64) unsigned char bytes[2 * exact_length * sizeof(double)];
};

template <class Value, int N>
inline Vector<Value, N> get(const Scratch& scratch, std::size_t at) {
  Vector<Value, N> value;
  std::memcpy(&value, scratch.bytes + at * sizeof(Value), sizeof value);
  return value;
}

template <class Value, int N>
inline void put(unsigned char* bytes, std::size_t at, Vector<Value, N> value) {
  std::memcpy(bytes + at * sizeof(Value), &value, sizeof value);
}

// AVX-512 has operations that leave the flags alone. So sums that all can be rounded are rounded in registers, before the
// flag is read.
#if TREEFOLD_VECTORS && defined(__AVX512F__)
constexpr int quietly = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// Not for MEANs of float64, some of which need another tier, nor for 16-bit floats, which gain nothing.
template <class P, class Value, int N>
constexpr bool rounds_quietly = sizeof(Value) * N == 64 && !P::is_short && !(P::is_double && P::op == Op::mean);

template <class P, int N>
inline Vector<typename P::Element, N> rounded_quietly(Vector<double, N> sum, Vector<double, N> rest, const Divisor& divisor) {
  const Vector<double, N> zero{}, number = zero + divisor.number;
  if constexpr (P::is_double) {
    const Vector<double, N> both = _mm512_add_round_pd(sum, rest, quietly);
    return canonical<double, N>(rest == zero ? sum : both);
  } else {
    if constexpr (P::op == Op::mean) {
      sum = divisor.multiplies ? _mm512_mul_round_pd(sum, number, quietly) : _mm512_div_round_pd(sum, number, quietly);
    }
    sum = canonical<double, N>(sum);
    return bits_as<Vector<float, N>>(_mm512_cvt_roundpd_ps(sum, quietly));  // a macro in Clang
  }
}
#else
template <class P, class Value, int N>
constexpr bool rounds_quietly = false;
template <class P, int N>
Vector<typename P::Element, N> rounded_quietly(Vector<double, N> sum, Vector<double, N> rest, const Divisor& divisor);
#endif

// Adds up `U` vectors of every contribution, from element `at` on: into the scratch, or rounded into `out`.
template <class P, class Value, int N, int U>
inline void add_up(Scratch& scratch, std::size_t i, const void* const* sources, const Arithmetic& fold, std::size_t at,
                   [[maybe_unused]] const Divisor& divisor, [[maybe_unused]] unsigned char* out) {
  using Format = typename P::Format;
  using Lanes = Vector<Value, N>;
  constexpr std::size_t nbytes = U > 1 ? sizeof(typename P::Element) * N * U : 0;
  Lanes total[U]{}, rest[P::is_double ? U : 1]{};
  for (std::size_t r = 0; r < fold.count; ++r) {
    const auto* const source = static_cast<const typename P::Element*>(sources[r]) + at + i;
    prefetch_ahead<nbytes>(source);
    each<U>([&](auto u) {
      Lanes value = read_as<Value, Format, N>(source + u * N);
      if constexpr (P::is_weighted) value = value * static_cast<Value>(fold.weights->numbers()[r]);
      if constexpr (P::is_double) {
        const Lanes upper = upper_half<N>(value), lower = value - upper;
        total[u] = r ? static_cast<Lanes>(total[u] + upper) : upper;
        rest[u] = r ? static_cast<Lanes>(rest[u] + lower) : lower;
      } else {
        total[u] = r ? static_cast<Lanes>(total[u] + value) : value;
      }
    });
  }
  each<U>([&](auto u) {
    if constexpr (rounds_quietly<P, Value, N>) {
      put<typename P::Element, N>(out, i + u * N, rounded_quietly<P, N>(total[u], rest[P::is_double ? u : 0], divisor));
    } else {
      put<Value, N>(scratch.bytes, i + u * N, total[u]);
      if constexpr (P::is_double) put<Value, N>(scratch.bytes, exact_length + i + u * N, rest[u]);
    }
  });
}

// Tells by the exponents of a block whether sums in an accumulator of `digits` bits are exact. All contributions are
// multiples of the unit of the least one, so it suffices that no sum has 2^digits such units or more.
template <class P, class Value>
inline bool exponents_are_near(const void* const* sources, const Arithmetic& fold, std::size_t at, std::size_t length) {
  using Bits = typename UnsignedOf<typename P::Element>::type;
  using Form = Precision<typename P::Format>;
  constexpr int special = (1 << Form::field_bits) - 1;
  constexpr int digits = P::is_double ? 26 + Form::bits : std::numeric_limits<Value>::digits;
  int least = special, most = 0;
  for (std::size_t r = 0; r < fold.count; ++r) {
    for (std::size_t i = at; i < at + length; ++i) {
      Bits bits;
      std::memcpy(&bits, static_cast<const typename P::Element*>(sources[r]) + i, sizeof bits);
      const int field = static_cast<int>(bits >> (Form::bits - 1)) & special;
      const bool is_zero = static_cast<Bits>(bits << 1) == 0;
      least = is_zero || field > least ? least : field > 1 ? field : 1;
      most = field > most ? field : most;
    }
  }
  // The weights of all contributions together, or their number.
  std::uint64_t terms = fold.count;
  if constexpr (P::is_weighted) terms = fold.weights->sum()[0];
  const int growth = ceil_log2(terms);
  constexpr bool has_same_range = Form::field_bits == (sizeof(Value) == 4 ? 8 : 11);
  if (most == special || (has_same_range && most > special - 1 - growth)) return false;
  return most - least <= digits - Form::bits - growth;
}

// Fills the scratch with exact sums, or `out` with rounded ones, or declines.
template <class P, class Value, int N>
inline bool add_exactly(Scratch& scratch, const void* const* sources, const Arithmetic& fold, std::size_t at,
                        std::size_t length, Certificate certificate, const Divisor& divisor, unsigned char* out) {
  const auto add = [&] {
    // As many as there are registers for.
    constexpr int U = N == 1 ? 1 : P::is_double && vector_bytes < 64 ? 4 : 8;
    std::size_t i = 0;
    for (; length - i >= N * U; i += N * U) add_up<P, Value, N, U>(scratch, i, sources, fold, at, divisor, out);
    if constexpr (U > 1) {
      for (; i < length; i += N) add_up<P, Value, N, 1>(scratch, i, sources, fold, at, divisor, out);
    }
  };
  switch (certificate) {
    case Certificate::flag: return adds_exactly(scratch, add);
    case Certificate::integers:
      if (!exponents_are_near<P, Value>(sources, fold, at, length)) return false;
      add();
      return true;
    default: return false;
  }
}

// Rounds the sums of the first tier into `out`; returns false if some need another tier.
template <class P, class Value, int N>
inline bool round_sums(const Scratch& scratch, const Divisor& divisor, std::size_t length, unsigned char* out) {
  using Element = typename P::Element;
  using Lanes = Vector<Value, N>;
  if constexpr (rounds_quietly<P, Value, N>) return true;
  const bool multiplies = divisor.multiplies;
  const Value number = static_cast<Value>(divisor.number);
  [[maybe_unused]] Vector<double, N == lanes_of<double> ? N : 1> fails{};
  for (std::size_t i = 0; i < length; i += N) {
    Lanes value = get<Value, N>(scratch, i);
    if constexpr (P::is_double) {
      const Lanes rest = get<Value, N>(scratch, exact_length + i), zero{};
      if (number == 1) {
        put<Element, N>(out, i, canonical<double, N>(plus<N>(value, rest)));
        continue;
      }
      if (multiplies) {  // by a power of two, which rounds nothing far from the least numbers
        const Lanes sum = plus<N>(value, rest), size = sum < zero ? -sum : sum, one = zero + 1.0;
        const Lanes small = size < zero + 0x1p-900 ? one : zero;
        fails = fails + (size == zero ? zero : small) + (sum - sum == zero ? zero : one);
        put<Element, N>(out, i, canonical<double, N>(sum * number));
        continue;
      }
      const Finished<P, N> done = finish<P, N>(value, rest, zero, divisor);
      put<Element, N>(out, i, done.out);
      fails = fails + done.fails;
    } else {
      // A quotient of an exact sum may be rounded twice, if the divisor has few bits (docs/how/numbers.md).
      if constexpr (P::op == Op::mean) value = multiplies ? value * number : value / number;
      if constexpr (std::is_same_v<Value, float>) {
        put<Element, N>(out, i, P::Format::template pack<N>(canonical<float, N>(value)));
      } else {
        put<Element, N>(out, i, rounded_to<P, N>(value));
        fails = fails + hazard<P, N>(value);
      }
    }
  }
  if constexpr (std::is_same_v<Value, double>) return !any<N>(fails);
  return true;
}

// The tier of intervals, for N elements. Errors are counted in units of 2^-53 of the sum of all sizes. The sum loses at most
// one unit for each contribution. The quotient loses at most 5: 2 by the sum of weights, which is cut to 53 bits, 1 by the
// division, 1 by the addition that makes an end, and 1 by the rounding of `doubt`.
template <class P, int N>
inline Finished<P, N> round_interval(const void* const* sources, const Arithmetic& fold, const Divisor& divisor,
                                     std::size_t at) {
  using Lanes = Vector<double, N>;
  const Lanes zero{};
  Lanes sum{}, size{};
  for (std::size_t r = 0; r < fold.count; ++r) {
    Lanes value = read_as<double, typename P::Format, N>(static_cast<const typename P::Element*>(sources[r]) + at);
    if constexpr (P::is_weighted) value = value * fold.weights->scaled()[r];
    sum = r ? static_cast<Lanes>(sum + value) : value;
    size = size + (value < zero ? -value : value);
  }
  const Lanes quotient = divisor.inverse != 0 ? sum * divisor.inverse : sum / (zero + divisor.high);
  const Lanes doubt = size * (static_cast<double>(fold.count + 8) * 0x1p-53 / divisor.high);
  Vector<typename P::Element, N> ends[2];
  Lanes fails{};
  each<2>([&](auto end) {
    const Lanes far = plus<N>(quotient, end ? doubt : -doubt);
    ends[end] = rounded_to<P, N>(far);
    fails = fails + hazard<P, N>(far);
  });
  return {ends[0], static_cast<Lanes>(fails + differ<P, N>(ends))};
}

// The tier of errors, for N elements.
template <class P, int N>
inline Finished<P, N> round_with_errors(const void* const* sources, const Arithmetic& fold, const Divisor& divisor,
                                        std::size_t at) {
  using Lanes = Vector<double, N>;
  const Lanes zero{}, one = zero + 1.0;
  Lanes sum{}, error{}, rest{}, fails{};
  (void)one;
  const auto take = [&](Lanes term) {
    const Lanes next = sum + term, lost = error_of_sum<N>(sum, term, next), both = error + lost;
    const Lanes left = error_of_sum<N>(error, lost, both);
    rest = rest + (left < zero ? -left : left);
    sum = next;
    error = both;
  };
  for (std::size_t r = 0; r < fold.count; ++r) {
    const Lanes value = read_as<double, typename P::Format, N>(static_cast<const typename P::Element*>(sources[r]) + at);
    if constexpr (!P::is_weighted) {
      if (r) take(value);
      else sum = value;
    } else {
      // Products of halves are exact. If a product of the lower half is a zero, its sign may be wrong: it is left out.
      const double high = fold.weights->high()[r], low = fold.weights->low()[r];
      const auto take_product = [&](Lanes term, bool is_first) {
        if (is_first) {
          sum = term;
        } else {
          take(term);
        }
      };
      const auto take_lower = [&](Lanes term) {
        const Lanes before[] = {sum, error, rest};
        take(term);
        const auto is_zero = term == zero;
        sum = is_zero ? before[0] : sum;
        error = is_zero ? before[1] : error;
        rest = is_zero ? before[2] : rest;
      };
      if constexpr (P::is_double) {
        const Lanes size = value < zero ? -value : value;
        const Lanes out = size < zero + 0x1p-300 ? one : size > zero + 0x1p+300 ? one : zero;
        fails = size == zero ? fails : static_cast<Lanes>(fails + out);
        const Lanes upper = upper_part<N>(value), lower = value - upper;
        take_product(upper * high, r == 0);
        take_lower(lower * high);
        take_lower(upper * low);
        take_lower(lower * low);
      } else {
        take_product(value * high, r == 0);
        take_lower(value * low);
      }
    }
  }
  Finished<P, N> done = finish<P, N>(sum, error, rest, divisor);
  done.fails = done.fails + fails;
  return done;
}

template <class P, int N>
inline void fold_exactly(const void* const* sources, const Arithmetic& fold, const Divisor& divisor, std::size_t at,
                         std::size_t length, Scratch& scratch) {
  for (std::size_t i = 0; i < length; i += N) {
    Finished<P, N> done{};
    const auto is_right = [&](const Finished<P, N>& made) {
      done = made;
      return !any<N>(made.fails);
    };
    if (divisor.high != 0) {
      bool passes = false;
      if constexpr (!P::is_double) {
        passes = fold.count < most_in_interval && is_right(round_interval<P, N>(sources, fold, divisor, at + i));
      }
      passes = passes || is_right(round_with_errors<P, N>(sources, fold, divisor, at + i));
      put<typename P::Element, N>(scratch.bytes, i, done.out);
      if (passes) continue;
    } else {  // weights of more bits than these tiers can use
      done.fails = Vector<double, N>{} + 1.0;
    }
    double fails[N];
    store<double, N>(fails, done.fails);
    for (int lane = 0; lane < N; ++lane) {
      if (fails[lane] == 0) continue;
      const auto bits = static_cast<typename UnsignedOf<typename P::Element>::type>(
          exact_bits(P::dtype, P::op, sources, fold, at + i + lane));
      std::memcpy(scratch.bytes + (i + lane) * sizeof bits, &bits, sizeof bits);
    }
  }
}

// Whether to try a tier that declined lately: after each time, twice as many blocks go without it, up to a limit.
class Patience {
 public:
  bool tries() {
    if (skipped_ == 0) return true;
    --skipped_;
    return false;
  }
  void tell(bool passed) {
    skipped_ = passed ? 0 : next_;
    next_ = passed ? 1 : next_ < most ? 2 * next_ + 1 : most;
  }

 private:
  static constexpr unsigned most = 31;
  unsigned skipped_ = 0, next_ = 1;
};

// Folds ranges of elements; one for each range.
template <class P>
class ExactFold {
 public:
  using Element = typename P::Element;
  static constexpr int doubles = lanes_of<double>, floats = lanes_of<float>;

  ExactFold(const void* const* sources, const Arithmetic& fold, Certificate certificate)
      : sources_(sources), fold_(fold), divisor_(Divisor::of<P>(fold)), certificate_(certificate) {
    // Beyond these numbers of contributions a quotient must not be rounded twice.
    constexpr std::uint64_t most_short = std::is_same_v<typename P::Format, Half> ? 1 << 13 : 1 << 16;
    has_short_ = P::is_short && !P::is_weighted && fold.count < most_short;
    if constexpr (P::is_weighted) {
      has_first_ = !P::is_double && fold.weights->are_small();
    } else {
      has_first_ = P::is_double || fold.count < (std::uint64_t{1} << 29);
    }
  }

  // Leaves the result of a block in the scratch, or in `out` if that is given and it can; returns whether it is in `out`.
  template <bool is_vector>
  bool fold(std::size_t at, std::size_t length, Scratch& scratch, [[maybe_unused]] unsigned char* out) {
    constexpr int N = is_vector ? doubles : 1;
    if constexpr (P::is_short && !P::is_weighted) {
      if (has_short_ && short_.tries()) {
        constexpr int M = is_vector ? floats : 1;
        unsigned char* const to = out != nullptr ? out : scratch.bytes;
        const bool is_exact = add_exactly<P, float, M>(scratch, sources_, fold_, at, length, certificate_, divisor_, to);
        short_.tell(is_exact);
        if (is_exact && round_sums<P, float, M>(scratch, divisor_, length, to)) return to == out;
      }
    }
    if constexpr (!(P::is_weighted && P::is_double)) {
      if (has_first_ && first_.tries()) {
        // Only sums that can all be rounded may go there: the block is not read again.
        constexpr bool is_told = std::is_same_v<Element, float> || (P::is_double && P::op == Op::sum);
        unsigned char* const to = is_told && out != nullptr ? out : scratch.bytes;
        const bool is_exact = add_exactly<P, double, N>(scratch, sources_, fold_, at, length, certificate_, divisor_, to);
        first_.tell(is_exact);
        if (is_exact && round_sums<P, double, N>(scratch, divisor_, length, to)) return to == out;
      }
    }
    fold_exactly<P, N>(sources_, fold_, divisor_, at, length, scratch);
    return false;
  }

 private:
  const void* const* sources_;
  const Arithmetic& fold_;
  const Divisor divisor_;
  const Certificate certificate_;
  bool has_short_, has_first_;
  Patience short_, first_;
};

// Copies a block to every target: as many vectors as registers hold, to one target after the other.
inline void copy_out(const Scratch& scratch, std::size_t nbytes, void* const* targets, std::size_t target_count,
                     std::size_t byte, bool stream_out) {
  using Line = Vector<std::uint8_t, vector_bytes ? vector_bytes : 1>;
  std::size_t done = 0;
  const auto copy = [&](auto lines) {
    constexpr int count = decltype(lines)::value;
    constexpr std::size_t part = count * sizeof(Line);
    for (; nbytes - done >= part; done += part) {
      Line held[count];
      each<count>([&](auto i) { held[i] = get<std::uint8_t, sizeof(Line)>(scratch, done + i * sizeof(Line)); });
      for (std::size_t t = 0; t < target_count; ++t) {
        char* const target = static_cast<char*>(targets[t]) + byte + done;
        const bool streams = stream_out && reinterpret_cast<std::uintptr_t>(target) % sizeof(Line) == 0;
        each<count>([&](auto i) {
          char* const to = target + i * sizeof(Line);
          if (streams) stream(to, held[i]);
          else std::memcpy(to, &held[i], sizeof(Line));
        });
      }
    }
  };
  if constexpr (sizeof(Line) > 1) {
    copy(std::integral_constant<int, vector_bytes == 64 ? 8 : 16>{});
    copy(std::integral_constant<int, 1>{});
  }
  if (done == nbytes) return;
  for (std::size_t t = 0; t < target_count; ++t) {
    std::memcpy(static_cast<char*>(targets[t]) + byte + done, scratch.bytes + done, nbytes - done);
  }
}

// The certificate that this level uses for the one that the user asks for.
Certificate certificate();

template <class P>
void exact_loop(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                std::size_t begin, std::size_t end, bool stream_out) {
  using Element = typename P::Element;
  constexpr std::size_t step = P::is_short ? lanes_of<float> : lanes_of<double>;
  Scratch scratch;
  ExactFold<P> folds(sources, fold, certificate());
  std::size_t at = begin;
  // If results are rounded before the flag is read, the contributions must stay until then.
  bool has_only_target = target_count == 1 && !stream_out;
  if constexpr (rounds_quietly<P, double, lanes_of<double>>) {
    for (std::size_t r = 0; r < fold.count; ++r) has_only_target = has_only_target && sources[r] != targets[0];
  }
  const auto advance = [&](std::size_t length, bool is_vector) {
    unsigned char* const only = has_only_target ? static_cast<unsigned char*>(targets[0]) + at * sizeof(Element) : nullptr;
    const bool is_written = is_vector ? folds.template fold<true>(at, length, scratch, only)
                                      : folds.template fold<false>(at, length, scratch, only);
    if (!is_written) copy_out(scratch, length * sizeof(Element), targets, target_count, at * sizeof(Element), stream_out);
    at += length;
  };
  if (end - begin >= least_aligned / sizeof(Element)) {
    const std::size_t odd = elements_to_line<Element>(targets, target_count, begin);
    if (odd != 0) advance(odd, false);
  }
  while (end - at >= step) advance(end - at >= exact_length ? exact_length : (end - at) / step * step, true);
  if (at < end) advance(end - at, false);
  if (stream_out) stream_fence();
}

// A MEAN of integers, also by weights: whole numbers, element by element.
template <Dtype dtype, class Result>
void exact_integer_mean(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                        std::size_t begin, std::size_t end, bool) {
  for (std::size_t at = begin; at < end; ++at) {
    const auto bits = static_cast<typename UnsignedOf<Result>::type>(exact_bits(dtype, Op::mean, sources, fold, at));
    for (std::size_t t = 0; t < target_count; ++t) {
      std::memcpy(static_cast<Result*>(targets[t]) + at, &bits, sizeof bits);
    }
  }
}

// Tells whether the flag works on this processor, in one loop of this level: it must be set by a sum that is rounded, and
// by no other. Not by constants, which a compiler would add up itself.
template <class P, class Value, class Element = typename P::Element>
bool flag_works(Element one, Element tiny) {
  constexpr int N = lanes_of<Value>;
  volatile Element number = one, speck = tiny;
  Element contributions[2][exact_length];
  for (std::size_t i = 0; i < exact_length; ++i) contributions[0][i] = contributions[1][i] = number;
  const void* const sources[] = {contributions[0], contributions[1]};
  const Weights weights({1, 1}, 1);
  Arithmetic pair;
  pair.count = 2;
  if constexpr (P::is_weighted) pair.weights = &weights;
  const Divisor divisor = Divisor::of<P>(pair);
  Scratch scratch, out;
  const auto adds = [&] {
    return add_exactly<P, Value, N>(scratch, sources, pair, 0, exact_length, Certificate::flag, divisor, out.bytes);
  };
  if (!adds()) return false;
  for (std::size_t at : {std::size_t{0}, std::size_t{77}, exact_length - 1}) {
    contributions[1][at] = speck;
    if (adds()) return false;
    contributions[1][at] = number;
  }
  return true;
}

// One loop of each kind: each may be compiled in its own way.
inline bool flag_works() {
#if TREEFOLD_HAS_FLAG
  const PlainArithmetic mode;  // the window leaves its own behind
  constexpr std::uint16_t short_one = 0x3f80, short_speck = 0x2180;  // 1 and 2^-60 in bfloat16
  return flag_works<Exact<Dtype::float32, Plain<float>, Op::sum, false>, double>(1.0f, 0x1p-60f) &&
         flag_works<Exact<Dtype::bfloat16, Brain, Op::sum, false>, float>(short_one, short_speck) &&
         flag_works<Exact<Dtype::float64, Plain<double>, Op::sum, false>, double>(1.0, 0x1p-60) &&
         flag_works<Exact<Dtype::float32, Plain<float>, Op::mean, true>, double>(1.0f, 0x1p-60f);
#else
  return false;
#endif
}

Certificate certificate() {
  static const bool works = flag_works();
  const Certificate asked = asked_certificate.load(std::memory_order_relaxed);
  return asked == Certificate::flag && !works ? Certificate::integers : asked;
}

}  // namespace treefold::TREEFOLD_LEVEL
