// Exact partial sums between hosts: a message of fixed size has the sums of blocks, behind each other, and then a byte for
// each block. 0: the message does not hold its exact sums, and contributions follow. Else they are held as the first mode
// of the dtype holds them (partial.hpp), and those of 16-bit floats as whole numbers of units that the byte tells.
// docs/how/numbers.md explains them.
#pragma once

#include <cstddef>
#include <vector>

#include "partial.hpp"

namespace treefold {

// Contributions to the same elements, each with its weight.
struct Weighted {
  std::vector<const void*> rows;
  std::vector<Factor> factors;
};

std::size_t message_bytes(Dtype dtype, std::size_t length);
// Adds contributions, and writes their exact sums.
void write_message(const PartialLoops& loops, Dtype dtype, const Weighted& own, std::size_t length, unsigned char* message);
// Adds contributions and messages, and rounds the sums into `result`. Returns the blocks that it leaves alone: those that a
// message does not hold, or that take more than two floats or a doubtful rounding.
Blocks fold_messages(const PartialLoops& loops, Dtype dtype, const Weighted& own, const std::vector<const void*>& messages,
                     std::size_t length, const Divisor64& divisor, void* result);

}  // namespace treefold
