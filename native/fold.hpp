// Folding arrays in host memory: pointers and lengths, nothing of Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace treefold {

// Elements folded at a time. Their wide sums stay in the first-level cache (8 KiB of doubles) while the
// sources stream past, one after the other: no source is read twice, no sum touches main memory.
constexpr std::size_t block_length = 1024;

// Sums sources[r][0 .. length) over r, in that order, in Wide; then divides by `divisor` unless it is 1,
// rounds once, and writes the result to every target.
//
// The sum starts from the first source, not from +0.0, so that -0.0 survives. A target may be one of the
// sources: a block is read from all sources before it is written. Any other overlap is the caller's mistake.
template <class Wide, class Value>
void fold_sum(const std::vector<const Value*>& sources, const std::vector<Value*>& targets, std::size_t length,
              Wide divisor) {
  Wide sums[block_length];
  for (std::size_t begin = 0; begin < length; begin += block_length) {
    const std::size_t count = std::min(block_length, length - begin);

    const Value* const first = sources[0] + begin;
    for (std::size_t i = 0; i < count; ++i) sums[i] = static_cast<Wide>(first[i]);
    for (std::size_t r = 1; r < sources.size(); ++r) {
      const Value* const source = sources[r] + begin;
      for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<Wide>(source[i]);
    }

    // Not a product with 1 / divisor: that would round twice.
    if (divisor != Wide(1)) {
      for (std::size_t i = 0; i < count; ++i) sums[i] /= divisor;
    }

    for (Value* const start : targets) {
      Value* const target = start + begin;
      for (std::size_t i = 0; i < count; ++i) target[i] = static_cast<Value>(sums[i]);
    }
  }
}

}  // namespace treefold
