// Sums over whole arrays, and sums of products, exact: the loops of one vector level.
//
// A chunk of elements goes through two tiers, each of which adds all of it exactly or declines:
//  1. Bins (Demmel and Nguyen). Adding a number to a large one of a fixed exponent cuts it at a fixed bit, and the lower part
//     goes to the next bin. If nothing is left after the last bin, the sum is exact. No flag is needed, and no order.
//  2. Whole numbers, added by their exponents (Neal).
// docs/how/numbers.md has the proofs.
#pragma once

#include "exact_rounding.hpp"
#include "superaccumulator.hpp"

namespace treefold::TREEFOLD_LEVEL {

template <class Format_, bool is_product_>
struct Terms {
  using Format = Format_;
  using Element = typename Format::Element;
  using Value = typename Format::Value;
  static constexpr bool is_product = is_product_, is_double = std::is_same_v<Value, double>;
  static constexpr int digits = std::numeric_limits<Value>::digits, factors = is_product ? 2 : 1;
  static constexpr int significant = (sizeof(Element) == 2 ? 11 : digits) * factors;  // bits of a term, at most
  // Products of float64 are not exact in float64, and have no bins.
  static constexpr bool has_bins = !(is_double && is_product);
  // A chunk's whole numbers of one exponent add up in 64 bits: those of float64, or parts of their products, have 54.
  static constexpr std::size_t chunk = has_bins ? 1024 : 256;

  static const Element* at(const void* array, std::size_t i) { return static_cast<const Element*>(array) + i; }

  template <std::size_t count>
  static void prefetch(const void* first, const void* second, std::size_t i) {
    prefetch_ahead<count * sizeof(Element)>(at(first, i));
    if constexpr (is_product) prefetch_ahead<count * sizeof(Element)>(at(second, i));
  }

  template <int N>
  static Vector<double, N> load(const void* first, const void* second, std::size_t i) {
    const auto get = [i](const void* array) { return convert<double, N>(Format::template load<N>(at(array, i))); };
    if constexpr (is_product) return get(first) * get(second);
    else return get(first);
  }
};

// Lanes that begin as 1.5 * 2^k and stay between 2^k and 2^(k + 1), where floats are multiples of 2^(k - 52). An addition is
// rounded to such a multiple. Its error is a float, which the subtractions give exactly (Dekker), and goes to the next bin.
// If nothing is left after the last bin, the bins hold the whole sum. The first bin is tested for leaving its range; the
// others get errors of known size, and are emptied before they could leave theirs.
template <class P>
class Bins {
 public:
  // `few` bins hold most chunks, and `depth`, one more, nearly all.
  static constexpr int few = P::significant <= 24 ? 1 : 2, depth = few + 1;
  static constexpr int N = lanes_of<double>, U = 4;
  static constexpr std::size_t step = static_cast<std::size_t>(N) * U;

  Bins() { begin(0); }

  // Adds `length` elements, a multiple of `step`, or adds none and returns false.
  bool add(const void* first, const void* second, std::size_t at, std::size_t length, Superaccumulator& total) {
    if (room_ < length / step) empty(total);
    if (try_bins<few>(first, second, at, length) || try_bins<depth>(first, second, at, length)) return true;
    empty(total);
    double most = 0;
    for (std::size_t i = at; i < at + length; ++i) {
      const double value = P::template load<1>(first, second, i), size = value < 0 ? -value : value;
      most = size > most ? size : most;
    }
    if (!(most < 0x1p+1000)) return false;
    begin(most);
    return try_bins<depth>(first, second, at, length);
  }

  void empty(Superaccumulator& total) {
    for (int d = 0; d < depth; ++d) {
      // Bits of floats count in units of the last one.
      const std::size_t unit = static_cast<std::size_t>(exponent_of(tops_[d]) - 52 - least_unit);
      std::int64_t sum = 0;
      for (const auto& lanes : bins_[d]) {
        double values[N];
        store<double, N>(values, lanes);
        for (const double value : values) {
          sum += bits_as<std::int64_t>(value) - bits_as<std::int64_t>(tops_[d]);
        }
      }
      total.add(sum, unit);
      for (auto& lanes : bins_[d]) lanes = Vector<double, N>{} + tops_[d];
    }
    room_ = terms;
  }

 private:
  using Lanes = Vector<double, N>;
  using Bits = Vector<std::uint64_t, N>;
  static constexpr int log2_terms = 10;  // of a lane, before it is emptied
  static constexpr std::size_t terms = std::size_t{1} << log2_terms;
  static constexpr int least_unit = -1074 * P::factors;

  static int exponent_of(double value) { return static_cast<int>(bits_as<std::uint64_t>(value) >> 52 & 0x7ff) - 1023; }
  static double power_of_two(int exponent) { return bits_as<double>(static_cast<std::uint64_t>(exponent + 1023) << 52); }

  // Chooses bins for numbers no larger than `most`.
  void begin(double most) {
    const int above = (exponent_of(most) < -900 ? -900 : exponent_of(most)) + 1;
    int top = above + log2_terms + 2;
    for (int d = 0; d < depth; ++d) {
      tops_[d] = 1.5 * power_of_two(top);
      for (auto& lanes : bins_[d]) lanes = Lanes{} + tops_[d];
      top += log2_terms + 2 - 53;
    }
    room_ = terms;
  }

  // Adds to the first D bins, or to none. `left`: the bits that are left after them, of all elements; `moved`: the bits in
  // which the first bin has differed from its beginning.
  template <int D>
  bool try_bins(const void* first, const void* second, std::size_t at, std::size_t length) {
    Lanes bins[D][U];
    Bits left{}, moved{};
    const Bits top = Bits{} + bits_as<std::uint64_t>(tops_[0]);
    each<D>([&](auto d) { each<U>([&](auto u) { bins[d][u] = bins_[d][u]; }); });
    for (std::size_t i = at; i < at + length; i += step) {
      P::template prefetch<step>(first, second, i);
      each<U>([&](auto u) {
        Lanes value = P::template load<N>(first, second, i + u * N);
        each<D>([&](auto d) {
          const Lanes next = bins[d][u] + value, taken = next - bins[d][u];
          bins[d][u] = next;
          if constexpr (d == 0) moved = moved | (bits_as<Bits>(next) ^ top);
          if constexpr (d == D - 1) left = left | (bits_as<Bits>(taken) ^ bits_as<Bits>(value));
          else value = value - taken;
        });
      });
    }
    std::uint64_t lefts[N], moves[N], any = 0;
    store<std::uint64_t, N>(lefts, left);
    store<std::uint64_t, N>(moves, moved);
    for (int lane = 0; lane < N; ++lane) any |= lefts[lane] << 1 | moves[lane] >> 52;
    if (any != 0) return false;
    each<D>([&](auto d) { each<U>([&](auto u) { bins_[d][u] = bins[d][u]; }); });
    room_ -= length / step;
    return true;
  }

  Lanes bins_[depth][U];
  double tops_[depth];
  std::size_t room_ = 0;
};

// Sums of significands, by exponent.
template <class P>
class ByExponent {
 public:
  void add(const void* first, const void* second, std::size_t begin, std::size_t end, Superaccumulator& total) {
    std::size_t least = places, most = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Whole a = whole(P::Format::template load<1>(P::at(first, i)));
      Whole b;
      if constexpr (P::is_product) b = whole(P::Format::template load<1>(P::at(second, i)));
      if (a.field == special || b.field == special) {
        note(P::template load<1>(first, second, i), total);
        continue;
      }
      const std::size_t place = place_of(a) + (P::is_product ? place_of(b) : 0);
      least = place < least ? place : least;
      most = place > most ? place : most;
      if constexpr (!P::is_product) {
        sums_[0][place] += a.number;
      } else if constexpr (!P::is_double) {
        sums_[0][place] += a.number * b.number;
      } else {
        const std::int64_t low_a = a.number & low_mask, low_b = b.number & low_mask;
        const std::int64_t high_a = (a.number - low_a) >> low_bits, high_b = (b.number - low_b) >> low_bits;
        sums_[0][place] += low_a * low_b;
        sums_[1][place] += low_a * high_b + high_a * low_b;
        sums_[2][place] += high_a * high_b;
      }
    }
    constexpr int unit = (std::numeric_limits<typename P::Value>::min_exponent - P::digits + 1074) * P::factors;
    for (std::size_t place = least; place <= most; ++place) {
      for (int part = 0; part < parts; ++part) {
        if (sums_[part][place] == 0) continue;
        total.add(sums_[part][place], place + unit + part * low_bits);
        sums_[part][place] = 0;
      }
    }
  }

 private:
  using Bits = typename UnsignedOf<typename P::Value>::type;
  static constexpr int special = 2 * std::numeric_limits<typename P::Value>::max_exponent - 1;
  static constexpr int low_bits = 26, parts = P::is_product && P::is_double ? 3 : 1;
  static constexpr std::int64_t low_mask = (std::int64_t{1} << low_bits) - 1;
  static constexpr std::size_t places = static_cast<std::size_t>(special) * P::factors;

  struct Whole {
    std::int64_t number = 0;  // the significand with its sign
    int field = 0;            // the exponent's
  };

  static Whole whole(typename P::Value value) {
    const Bits bits = bits_as<Bits>(value), hidden = Bits{1} << (P::digits - 1);
    const int field = static_cast<int>(bits >> (P::digits - 1)) & special;
    const auto size = static_cast<std::int64_t>((bits & (hidden - 1)) | (field > 0 ? hidden : 0));
    const std::int64_t sign = -static_cast<std::int64_t>(bits >> (8 * sizeof bits - 1));
    return {(size ^ sign) - sign, field};
  }
  static std::size_t place_of(const Whole& whole) { return static_cast<std::size_t>(whole.field > 1 ? whole.field - 1 : 0); }

  static void note(double term, Superaccumulator& total) {
    (term != term ? total.has_nan : term > 0 ? total.has_plus : total.has_minus) = true;
  }

  std::int64_t sums_[parts][places]{};
};

template <class P>
void whole_sum(const SumSpan* spans, std::size_t count, Superaccumulator& total) {
  ByExponent<P> by_exponent;
  [[maybe_unused]] Bins<P> bins;
  [[maybe_unused]] const bool tries_bins = asked_certificate.load(std::memory_order_relaxed) != Certificate::none;
  for (const SumSpan* span = spans; span != spans + count; ++span) {
    for (std::size_t at = span->begin, end; at < span->end; at = end) {
      end = span->end - at > P::chunk ? at + P::chunk : span->end;
      std::size_t done = 0;
      if constexpr (P::has_bins) {
        constexpr std::size_t step = Bins<P>::step;
        const std::size_t length = tries_bins ? (end - at) / step * step : 0;
        if (length != 0 && bins.add(span->first, span->second, at, length, total)) done = length;
      }
      if (at + done != end) by_exponent.add(span->first, span->second, at + done, end, total);
    }
  }
  if constexpr (P::has_bins) bins.empty(total);
}

}  // namespace treefold::TREEFOLD_LEVEL
