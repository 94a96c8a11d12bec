// A sum of any number of floats, or of products of two, as one whole number: nothing is rounded, whatever their exponents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "elements.hpp"

namespace treefold {

// Words of 32 bits, the lowest first. Each is a signed 64-bit number, so that carries can wait.
class Superaccumulator {
 public:
  // Enough for 2^64 products of float64, down to those of the least numbers.
  static constexpr std::size_t count = 136;

  // The special terms that were found.
  bool has_nan = false, has_plus = false, has_minus = false;

  // Adds value * 2^shift, which stays below the last two words.
  void add(std::int64_t value, std::size_t shift) {
    const std::uint64_t mask = 0xffffffffu, size = static_cast<std::uint64_t>(value < 0 ? -value : value);
    const std::size_t word = shift / 32, offset = shift % 32;
    const std::uint64_t low = (size & mask) << offset, high = (size >> 32) << offset;
    const std::uint64_t parts[] = {low & mask, (low >> 32) + (high & mask), high >> 32};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto part = static_cast<std::int64_t>(parts[i]);
      words_[word + i] += value < 0 ? -part : part;
    }
    if (++additions_ == most_additions) carry();
  }

  void add(Superaccumulator& other) {
    other.carry();
    carry();
    for (std::size_t i = 0; i < count; ++i) words_[i] += other.words_[i];
    has_nan |= other.has_nan;
    has_plus |= other.has_plus;
    has_minus |= other.has_minus;
    carry();
  }

  // Returns the whole number in two's complement.
  std::array<std::uint32_t, count> words() {
    carry();
    std::array<std::uint32_t, count> made;
    for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::uint32_t>(words_[i]);
    return made;
  }

 private:
  static constexpr std::uint32_t most_additions = std::uint32_t{1} << 28;  // each adds less than 2^34 to a word

  // Carries: every word but the last is then below 2^32, and the last has the sign.
  void carry() {
    std::int64_t carried = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t word = words_[i] + carried;
      const std::int64_t low = i + 1 < count ? word & 0xffffffff : word;
      carried = (word - low) / (std::int64_t{1} << 32);
      words_[i] = low;
    }
    additions_ = 0;
  }

  std::int64_t words_[count]{};
  std::uint32_t additions_ = 0;
};

// A part of one array, or of two with products to be added.
struct SumSpan {
  const void *first, *second;
  std::size_t begin, end;
};

// Adds up arrays on the threads of the pool, or on this one if they are small. Returns whether `interrupted` ended it.
bool add_up(const std::vector<SumSpan>& arrays, WholeSum loop, std::size_t element_bytes, Superaccumulator& total,
            const std::function<bool()>& interrupted);

}  // namespace treefold
