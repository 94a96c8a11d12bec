// The types of elements, the operations, and the table of loops that every vector level fills.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treefold {

// Each list is written once: numbers, names and sizes cannot come apart. Python takes numbers by these names only.
// clang-format off
#define TREEFOLD_DTYPES(X)                                                                     \
  X(float16, "float16", 2) X(bfloat16, "bfloat16", 2) X(float32, "float32", 4)                 \
  X(float64, "float64", 8) X(int8, "int8", 1) X(int16, "int16", 2) X(int32, "int32", 4)        \
  X(int64, "int64", 8) X(uint8, "uint8", 1) X(uint16, "uint16", 2) X(uint32, "uint32", 4)      \
  X(uint64, "uint64", 8) X(complex64, "complex64", 8) X(complex128, "complex128", 16)          \
  X(boolean, "bool", 1)
#define TREEFOLD_OPS(X) \
  X(sum, "SUM", 0) X(mean, "MEAN", 0) X(min, "MIN", 0) X(max, "MAX", 0) X(product, "PRODUCT", 0)
#define TREEFOLD_ACCUMULATIONS(X) X(exact, "exact", 0) X(native, "native", 0)
// clang-format on

#define TREEFOLD_ENUMERATOR(name, text, nbytes) name,
#define TREEFOLD_NAME(name, text, nbytes) text,
#define TREEFOLD_NBYTES(name, text, nbytes) nbytes,

enum class Dtype : int { TREEFOLD_DTYPES(TREEFOLD_ENUMERATOR) };
constexpr const char* dtype_names[] = {TREEFOLD_DTYPES(TREEFOLD_NAME)};
constexpr std::size_t element_bytes[] = {TREEFOLD_DTYPES(TREEFOLD_NBYTES)};
constexpr int dtype_count = sizeof dtype_names / sizeof *dtype_names;

enum class Op : int { TREEFOLD_OPS(TREEFOLD_ENUMERATOR) };
constexpr const char* op_names[] = {TREEFOLD_OPS(TREEFOLD_NAME)};
constexpr int op_count = sizeof op_names / sizeof *op_names;

enum class Accumulate : int { TREEFOLD_ACCUMULATIONS(TREEFOLD_ENUMERATOR) };
constexpr const char* accumulation_names[] = {TREEFOLD_ACCUMULATIONS(TREEFOLD_NAME)};
constexpr int accumulation_count = sizeof accumulation_names / sizeof *accumulation_names;

#undef TREEFOLD_ENUMERATOR
#undef TREEFOLD_NAME
#undef TREEFOLD_NBYTES

class Weights;
struct PartialLoops;
enum class Certificate : int;

// How one array is folded: everything but the pointers.
struct Arithmetic {
  std::size_t count = 0;             // contributions; MEAN divides by it
  const Weights* weights = nullptr;  // one per contribution; MEAN divides by their sum instead
};

// Folds elements [begin, end) of `count` sources and writes the result into `target_count` targets. With `stream` it writes
// around the caches: the targets are then not among the sources, and too large to be read again soon.
using Loop = void (*)(const void* const* sources, const Arithmetic& arithmetic, void* const* targets, std::size_t target_count,
                      std::size_t begin, std::size_t end, bool stream);

class Superaccumulator;
struct SumSpan;
// Adds all elements of parts of arrays, or their products.
using WholeSum = void (*)(const SumSpan* spans, std::size_t count, Superaccumulator& total);

// The loops of one vector level; null where a combination has no meaning.
struct Level {
  const char* name;
  Loop loops[dtype_count][op_count][accumulation_count];
  Loop weighted_mean[dtype_count];
  const PartialLoops* partial;  // the loops of partial sums
  WholeSum whole_sums[dtype_count], products[dtype_count];  // of floats
  Certificate (*certificate)();  // the proof that additions were exact
  Loop traffic;  // the same reads and writes on bytes, arithmetic left out: the limit that folds are measured against
};

}  // namespace treefold
