// Formats: the form of elements in memory, and that of their values in registers.
//
// A format has: Element (in memory), Value (one lane in a register), Lanes<N> (N lanes), load, and store. Its narrow rounds
// lanes to values that the element can hold, as "native" accumulation does after every step.
#pragma once

#include "half.hpp"
#include "vectors.hpp"

namespace treefold::TREEFOLD_LEVEL {

// Integers, float32 and float64 as they are.
template <class T>
struct Plain {
  using Element = T;
  using Value = T;
  template <int N>
  using Lanes = Vector<T, N>;
  template <int N>
  static Lanes<N> load(const Element* p) {
    return treefold::TREEFOLD_LEVEL::load<T, N>(p);
  }
  template <int N>
  static Vector<Element, N> pack(Lanes<N> v) {
    return v;
  }
  template <int N>
  static Lanes<N> narrow(Lanes<N> v) {
    return v;
  }
};

// Elements of T as values of a wider W.
template <class T, class W>
struct Widened {
  using Element = T;
  using Value = W;
  template <int N>
  using Lanes = Vector<W, N>;
  template <int N>
  static Lanes<N> load(const Element* p) {
    return convert<W, N>(treefold::TREEFOLD_LEVEL::load<T, N>(p));
  }
  template <int N>
  static Vector<Element, N> pack(Lanes<N> v) {
    return convert<T, N>(v);
  }
};

// bfloat16: the upper half of a float32, rounded to nearest even.
struct Brain {
  using Element = std::uint16_t;
  using Value = float;
  template <int N>
  using Lanes = Vector<float, N>;
  template <int N>
  static Lanes<N> load(const Element* p) {
    const auto bits = convert<std::uint32_t, N>(treefold::TREEFOLD_LEVEL::load<Element, N>(p));
    return bits_as<Lanes<N>>(static_cast<Vector<std::uint32_t, N>>(bits << 16));
  }
  template <int N>
  static Vector<std::uint32_t, N> upper(Lanes<N> v) {
    using Bits = Vector<std::uint32_t, N>;
    const Bits bits = bits_as<Bits>(v);
    // Ties to even; a carry into the exponent is right. A NaN could carry into infinity or the sign, so its upper half
    // is kept and made quiet: it is a NaN even if only lower bits made it one.
    const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Bits nan = (bits >> 16) | 0x40u;
    return v == v ? rounded : nan;
  }
  template <int N>
  static Vector<Element, N> pack(Lanes<N> v) {
    return convert<Element, N>(upper<N>(v));
  }
  template <int N>
  static Lanes<N> narrow(Lanes<N> v) {
    return bits_as<Lanes<N>>(static_cast<Vector<std::uint32_t, N>>(upper<N>(v) << 16));
  }
};

// float16, by the processor's conversions where it has them.
struct Half {
  using Element = std::uint16_t;
  using Value = float;
  template <int N>
  using Lanes = Vector<float, N>;
  template <int N>
  static Lanes<N> load(const Element* p) {
#if TREEFOLD_VECTORS && defined(__AVX512F__)
    if constexpr (N == 16) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#endif
#if TREEFOLD_VECTORS && defined(__F16C__)
    if constexpr (N == 8) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    if constexpr (N == 4) return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
    if constexpr (N == 1) {
      return half_to_float(*p);
    } else {
      float lanes[N];
      for (int i = 0; i < N; ++i) lanes[i] = half_to_float(p[i]);
      return treefold::TREEFOLD_LEVEL::load<float, N>(lanes);
    }
  }
  template <int N>
  static Vector<Element, N> pack(Lanes<N> v) {
#if TREEFOLD_VECTORS && defined(__AVX512F__)
    if constexpr (N == 16) return bits_as<Vector<Element, N>>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#endif
#if TREEFOLD_VECTORS && defined(__F16C__)
    if constexpr (N == 8) return bits_as<Vector<Element, N>>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    if constexpr (N == 4) {
      Vector<Element, N> out;
      const __m128i halves = _mm_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
      std::memcpy(&out, &halves, sizeof out);
      return out;
    }
#endif
    if constexpr (N == 1) {
      return float_to_half(v);
    } else {
      float lanes[N];
      Element elements[N];
      treefold::TREEFOLD_LEVEL::store<float, N>(lanes, v);
      for (int i = 0; i < N; ++i) elements[i] = float_to_half(lanes[i]);
      return treefold::TREEFOLD_LEVEL::load<Element, N>(elements);
    }
  }
  template <int N>
  static Lanes<N> narrow(Lanes<N> v) {
    Element elements[N];
    treefold::TREEFOLD_LEVEL::store<Element, N>(elements, pack<N>(v));
    return load<N>(elements);
  }
};

// bool: any byte but 0 is true.
struct Truth {
  using Element = std::uint8_t;
  using Value = std::uint8_t;
  template <int N>
  using Lanes = Vector<std::uint8_t, N>;
  template <int N>
  static Lanes<N> load(const Element* p) {
    const Lanes<N> v = treefold::TREEFOLD_LEVEL::load<Element, N>(p);
    const Lanes<N> zero{}, one = zero + static_cast<std::uint8_t>(1);
    return v != zero ? one : zero;
  }
  template <int N>
  static Vector<Element, N> pack(Lanes<N> v) {
    return v;
  }
  template <int N>
  static Lanes<N> narrow(Lanes<N> v) {
    return v;
  }
};

}  // namespace treefold::TREEFOLD_LEVEL
