// Vectors of elements, as the compiler's own vector types where it has them, else one element at a time. Included once
// per vector level, in that level's namespace, so that no code of one level can stand in for another's.

#if defined(__GNUC__) && !defined(TREEFOLD_PLAIN)
#define TREEFOLD_VECTORS 1
#else
#define TREEFOLD_VECTORS 0
#endif

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
template <class To, int N, class V>
inline Vector<To, N> convert(V v) {
  if constexpr (N == 1) {
    return static_cast<To>(v);
  } else {
    return __builtin_convertvector(v, Vector<To, N>);
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

// Makes streamed writes visible to other threads.
inline void stream_fence() {
#if TREEFOLD_VECTORS && defined(__SSE2__)
  _mm_sfence();
#endif
}
