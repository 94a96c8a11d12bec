// What the kernels fold: element types, operations, and the table of loops that every vector level fills.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treefold {

enum class Dtype : int {
  float16, bfloat16, float32, float64,
  int8, int16, int32, int64, uint8, uint16, uint32, uint64,
  complex64, complex128, boolean,
};
constexpr int dtype_count = 15;

enum class Op : int { sum, mean, min, max, product };
constexpr int op_count = 5;

enum class Accumulate : int { wide, native };

// How one array is folded: everything but the pointers.
struct Arithmetic {
  std::size_t count = 0;            // contributions; MEAN divides by it
  const double* weights = nullptr;  // one per contribution, all positive; MEAN divides by their sum instead
  double weight_sum = 0;
};

// Folds elements [begin, end) of `count` sources and writes the result into `target_count` targets. `stream`: write
// around the caches (the targets are not among the sources, and too large to be read again soon).
using Loop = void (*)(const void* const* sources, const Arithmetic& arithmetic, void* const* targets,
                      std::size_t target_count, std::size_t begin, std::size_t end, bool stream);

// The loops of one vector level; null where a combination has no meaning.
struct Level {
  const char* name;
  Loop loops[dtype_count][op_count][2];
  Loop weighted_mean[dtype_count];
  Loop traffic;  // the same reads and writes on bytes, arithmetic left out: the limit that folds are measured against
};

}  // namespace treefold
