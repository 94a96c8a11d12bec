// Exact partial sums: sums that go on. Contributions come one after the other, in any order and in parts, and what they
// add up to is kept without rounding until it is asked for. docs/how/numbers.md explains the modes.
//
// The memory belongs to the caller: arrays of one element or one block after the other, as they are also saved and sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "elements.hpp"
#include "whole.hpp"

namespace treefold {

constexpr std::size_t partial_length = 128;  // elements of a block
// The dtypes of contributions and results, from the first of the list on.
constexpr int partial_dtypes = 4;

// How a block is held. It only rises, and nothing is rounded when it does.
enum class Mode : std::uint8_t { single, pair, whole };

// What a contribution is multiplied by: a whole number of units of 2^-64 above 0, and the same in float64.
struct Factor {
  double number = 1;           // 0: of more bits than the product with a float32 leaves room for
  std::vector<double> pieces;  // of 26 bits at most; none: the weight is 1
  Natural words;
};

// What sums are divided by: high + low, 0 if two numbers do not hold it; and words · 2^(exponent - 64), exactly.
struct Divisor64 {
  double high, low, inverse;
  Natural words;
  std::int64_t exponent;
};

// The loops over one block, each for a vector level.
struct PartialLoops {
  // Reads contributions as float64.
  void (*read[partial_dtypes])(const void* source, double* values, std::size_t length);
  // Add a block, or change nothing and return false: the block has to be held in the next mode.
  bool (*add_single)(double* sums, const double* values, double factor);
  bool (*add_pair)(double* sums, double* rests, const double* values, const Factor& factor, bool is_wide);
  // Writes sums of 16-bit floats as whole numbers of 32 bits, and returns the byte that tells their unit; 0 if it cannot.
  unsigned char (*narrow)(const double* sums, void* numbers);
  void (*widen)(const void* numbers, unsigned char form, double* sums);
  // Rounds a block, and says which of its elements it could not tell.
  void (*finish[partial_dtypes])(const double* sums, const double* rests, const Divisor64& divisor, void* results, bool* fails);
};

// One partial sum. `places`: of blocks in mode whole, where in `wholes` they are.
struct Partial {
  std::size_t length;       // elements
  std::size_t words;        // of 32 bits, of one whole number; one more has its flags
  int least_unit;           // a whole number counts units of 2^least_unit
  std::uint8_t* modes;      // of blocks
  double* sums;             // of elements, and up to the end of the last block -0
  double* rests;            // likewise, +0; null while no block is a pair
  const std::uint32_t* places;
  std::uint32_t* wholes;

  std::size_t block_count() const { return (length + partial_length - 1) / partial_length; }
  std::size_t count_in(std::size_t block) const {
    return block + 1 < block_count() ? partial_length : length - block * partial_length;
  }
  std::uint32_t* whole(std::size_t block, std::size_t element) const {
    return wholes + (places[block] * partial_length + element) * (words + 1);
  }
};

// Arrays behind each other, which together are as long as a partial sum. `offsets`: where each begins, and the end.
struct Pieces {
  const std::uint64_t* starts;
  const std::int64_t* offsets;
  std::size_t count;
};

using Blocks = std::vector<std::size_t>;

Blocks all_blocks(std::size_t count);
// Calls `work` for each block, on the threads of the pool, and returns those for which it returned false, in their order.
Blocks for_each(const Blocks& blocks, const std::function<bool(std::size_t block)>& work);

// Each of these does its work for `blocks`, on the threads of the pool. The first two leave blocks as they were that have
// to be held in a higher mode first, and return these.
Blocks add(const Partial& partial, const PartialLoops& loops, Dtype dtype, const Pieces& pieces, const Factor& factor,
           const Blocks& blocks);
Blocks merge(const Partial& partial, const PartialLoops& loops, const Partial& other, const Blocks& blocks);
// Writes what blocks hold as floats into their whole numbers, which are 0.
void make_whole(const Partial& partial, const Blocks& blocks);
void finish(const Partial& partial, const PartialLoops& loops, Dtype dtype, const Pieces& pieces, const Divisor64& divisor);

}  // namespace treefold
