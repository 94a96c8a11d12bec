// Vectors of elements, as the compiler's own vector types where it has them, else one element at a time.
#pragma once

#include "half.hpp"
#include "level.hpp"

#if defined(__GNUC__) && !defined(TREEFOLD_PLAIN)
#define TREEFOLD_VECTORS 1
#else
#define TREEFOLD_VECTORS 0
#endif

namespace treefold::TREEFOLD_LEVEL {

#if TREEFOLD_VECTORS

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
  typedef T unaligned __attribute__((vector_size(N * sizeof(T)), aligned(1), may_alias));
};
template <class T>
struct VectorOf<T, 1> {  // the elements before and after the vectors
  typedef T type;
  typedef T unaligned;
};
template <class T, int N>
using Vector = typename VectorOf<T, N>::type;

template <class T, int N>
inline Vector<T, N> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T, N>::unaligned*>(p);
}
template <class T, int N>
inline void store(T* p, Vector<T, N> v) {
  *reinterpret_cast<typename VectorOf<T, N>::unaligned*>(p) = v;
}

#if defined(__AVX2__)
template <class V>
inline __m128i low_half(V v) {  // `v` in the low half of a register; the rest is 0
  __m128i all = _mm_setzero_si128();
  std::memcpy(&all, &v, sizeof v);
  return all;
}
#endif

// Conversions that __builtin_convertvector takes in halves or one by one (GCC 12), and the processor in one step.
template <class From, class To, int N>
struct OneStep {
  static constexpr bool exists = false;
};
#define TREEFOLD_ONE_STEP(From, To, N, expression)                                            \
  template <>                                                                                 \
  struct OneStep<From, To, N> {                                                               \
    static constexpr bool exists = true;                                                      \
    static Vector<To, N> of(Vector<From, N> v) { return bits_as<Vector<To, N>>(expression); } \
  };
#if defined(__AVX512F__)
TREEFOLD_ONE_STEP(float, double, 8, _mm512_cvtps_pd(bits_as<__m256>(v)))
TREEFOLD_ONE_STEP(std::uint16_t, std::uint32_t, 16, _mm512_cvtepu16_epi32(bits_as<__m256i>(v)))
TREEFOLD_ONE_STEP(std::uint32_t, std::uint16_t, 16, _mm512_cvtepi32_epi16(bits_as<__m512i>(v)))
TREEFOLD_ONE_STEP(std::int8_t, std::int64_t, 8, _mm512_cvtepi8_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::uint8_t, std::int64_t, 8, _mm512_cvtepu8_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::int16_t, std::int64_t, 8, _mm512_cvtepi16_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::uint16_t, std::int64_t, 8, _mm512_cvtepu16_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::int32_t, std::int64_t, 8, _mm512_cvtepi32_epi64(bits_as<__m256i>(v)))
TREEFOLD_ONE_STEP(std::uint32_t, std::int64_t, 8, _mm512_cvtepu32_epi64(bits_as<__m256i>(v)))
#elif defined(__AVX2__)
TREEFOLD_ONE_STEP(float, double, 4, _mm256_cvtps_pd(bits_as<__m128>(v)))
TREEFOLD_ONE_STEP(std::uint16_t, std::uint32_t, 8, _mm256_cvtepu16_epi32(low_half(v)))
TREEFOLD_ONE_STEP(std::int8_t, std::int64_t, 4, _mm256_cvtepi8_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::uint8_t, std::int64_t, 4, _mm256_cvtepu8_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::int16_t, std::int64_t, 4, _mm256_cvtepi16_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::uint16_t, std::int64_t, 4, _mm256_cvtepu16_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::int32_t, std::int64_t, 4, _mm256_cvtepi32_epi64(low_half(v)))
TREEFOLD_ONE_STEP(std::uint32_t, std::int64_t, 4, _mm256_cvtepu32_epi64(low_half(v)))
#endif
#undef TREEFOLD_ONE_STEP

template <class To, int N, class V>
inline Vector<To, N> convert(V v) {
  if constexpr (N == 1) {
    return static_cast<To>(v);
  } else {
    using From = std::decay_t<decltype(v[0])>;
    if constexpr (OneStep<From, To, N>::exists) {
      return OneStep<From, To, N>::of(v);
    } else {
      return __builtin_convertvector(v, Vector<To, N>);
    }
  }
}

#else  // one element at a time, for any compiler

constexpr int vector_bytes = 0;

template <class T, int N>
using Vector = T;

template <class T, int N>
inline T load(const T* p) {
  return *p;
}
template <class T, int N>
inline void store(T* p, T v) {
  *p = v;
}
template <class To, int N, class V>
inline To convert(V v) {
  return static_cast<To>(v);
}

#endif

// Calls f(0) … f(count - 1), each with its index as a constant. The lanes of a block then stay in registers, unlike in a loop
// over an array of them.
template <class Call, std::size_t... at>
inline void each(std::index_sequence<at...>, Call&& f) {
  (f(std::integral_constant<std::size_t, at>{}), ...);
}
template <int count, class Call>
inline void each(Call&& f) {
  each(std::make_index_sequence<count>{}, f);
}

// Two vectors as one of twice the size, if a register holds that: both stores cost the same.
template <std::size_t nbytes>
struct Pair {
  static constexpr bool fits = false;
};
#if TREEFOLD_VECTORS && defined(__AVX512F__)
template <>
struct Pair<32> {
  static constexpr bool fits = true;
  using type = __m512i;
  template <class V>
  static __m512i of(V low, V high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(bits_as<__m256i>(low)), bits_as<__m256i>(high), 1);
  }
};
#elif TREEFOLD_VECTORS && defined(__AVX2__)
template <>
struct Pair<16> {
  static constexpr bool fits = true;
  using type = __m256i;
  template <class V>
  static __m256i of(V low, V high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(bits_as<__m128i>(low)), bits_as<__m128i>(high), 1);
  }
};
#endif

// How many bytes ahead of its loads a loop prefetches. The processor's own prefetching stops at every page, and a fold reads a
// page of each source for a short time only. With this, folds of large arrays take 10-25 % less time.
constexpr std::size_t prefetch_bytes = 512;

// Prefetches `nbytes` bytes that will be read soon. Bytes beyond the end of an array do no harm.
template <std::size_t nbytes>
inline void prefetch_ahead(const void* p) {
#if TREEFOLD_VECTORS
  const char* const ahead = static_cast<const char*>(p) + prefetch_bytes;
  for (std::size_t at = 0; at < nbytes; at += 64) __builtin_prefetch(ahead + at);
#else
  (void)p;
#endif
}

// Writes around the caches; the address is a multiple of the vector's size.
template <class V>
inline void stream(void* p, V v) {
#if TREEFOLD_VECTORS && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return _mm512_stream_si512(static_cast<__m512i*>(p), bits_as<__m512i>(v));
#endif
#if TREEFOLD_VECTORS && defined(__AVX2__)
  if constexpr (sizeof(V) == 32) return _mm256_stream_si256(static_cast<__m256i*>(p), bits_as<__m256i>(v));
#endif
#if TREEFOLD_VECTORS && defined(__SSE2__)
  if constexpr (sizeof(V) == 16) return _mm_stream_si128(static_cast<__m128i*>(p), bits_as<__m128i>(v));
#endif
  std::memcpy(p, &v, sizeof v);
}

// Writes the vectors of a block to every target.
template <class V, int U>
inline void write_block(const V (&out)[U], void* const* targets, std::size_t target_count, std::size_t byte, bool stream_out) {
  if constexpr (U % 2 == 0 && Pair<sizeof(V)>::fits) {
    using Joined = typename Pair<sizeof(V)>::type;
    Joined joined[U / 2];
    each<U / 2>([&](auto u) { joined[u] = Pair<sizeof(V)>::of(out[2 * u], out[2 * u + 1]); });
    write_block<Joined, U / 2>(joined, targets, target_count, byte, stream_out);
  } else {
    for (std::size_t t = 0; t < target_count; ++t) {
      char* const target = static_cast<char*>(targets[t]) + byte;
      if (stream_out && reinterpret_cast<std::uintptr_t>(target) % sizeof(V) == 0) {
        each<U>([&](auto u) { stream(target + u * sizeof(V), out[u]); });
      } else {
        each<U>([&](auto u) { std::memcpy(target + u * sizeof(V), &out[u], sizeof(V)); });
      }
    }
  }
}

// Orders streamed writes before all later stores. A release store is a plain move on x86 and does not wait for them: a
// thread or rank that acquires it could read old memory. The release that follows is a worker's, when it leaves a job,
// or a rank's, when it arrives at a meeting.
inline void stream_fence() {
#if TREEFOLD_VECTORS && defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace treefold::TREEFOLD_LEVEL
