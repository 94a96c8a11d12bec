#include "partial.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>

#include "floating_mode.hpp"
#include "pool.hpp"

namespace treefold {

namespace {

constexpr std::size_t task_blocks = 512;
constexpr std::size_t fraction_bits = 64;  // of a weight, behind the point

// In the last word of a whole number.
enum Flag : std::uint32_t { has_nan = 1, has_plus = 2, has_minus = 4, is_no_negative_zero = 8 };

BinaryFormat format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::float16: return {16, 11};
    case Dtype::bfloat16: return {16, 8};
    case Dtype::float32: return {32, 24};
    default: return {64, 53};
  }
}

// Calls `use(piece's memory at its first element here, place in the block, number of elements)` for the parts of a block.
template <class Use>
void visit(const Pieces& pieces, std::size_t begin, std::size_t count, const Use& use) {
  const std::int64_t* const ends = pieces.offsets + 1;
  auto piece = static_cast<std::size_t>(std::upper_bound(ends, ends + pieces.count, static_cast<std::int64_t>(begin)) - ends);
  for (std::size_t at = 0; at < count; ++piece) {
    const std::size_t first = begin + at - static_cast<std::size_t>(pieces.offsets[piece]);
    const std::size_t length = std::min(static_cast<std::size_t>(ends[piece]) - (begin + at), count - at);
    use(pieces.starts[piece], first, at, length);
    at += length;
  }
}

// Adds a number, shifted left, to whole numbers in two's complement.
void add_shifted(std::uint32_t* words, std::size_t count, std::uint64_t number, std::size_t shift, bool is_negative) {
  const std::size_t offset = shift % limb_bits;
  const std::uint64_t low = (number & limb_mask) << offset, high = (number >> limb_bits) << offset;
  const std::uint64_t parts[] = {low & limb_mask, (low >> limb_bits) + (high & limb_mask), high >> limb_bits};
  std::int64_t carry = 0;
  std::size_t part = 0;
  for (std::size_t at = shift / limb_bits; at < count && (part < 3 || carry != 0); ++at, ++part) {
    const std::int64_t here = part < 3 ? static_cast<std::int64_t>(parts[part]) : 0;
    const std::int64_t total = static_cast<std::int64_t>(words[at]) + (is_negative ? -here : here) + carry;
    words[at] = static_cast<std::uint32_t>(total);
    carry = total >> limb_bits;
  }
}

// Adds a float64, times a weight in units of 2^-64, to the whole number of an element.
void add_to_whole(std::uint32_t* words, const Partial& partial, double value, const Natural& weight) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const Number number = of_float(bits, format_of(Dtype::float64));
  std::uint32_t& flags = words[partial.words];
  flags |= number.is_nan ? has_nan : number.is_infinite ? (number.is_negative ? has_minus : has_plus) : 0u;
  if (!number.is_negative || number.significand != 0) flags |= is_no_negative_zero;
  if (number.significand == 0) return;
  // Floats narrower than float64 have zeros at their end, which the weight's fraction may need.
  const std::int64_t shift = number.exponent - partial.least_unit - static_cast<std::int64_t>(fraction_bits);
  std::uint64_t significand = number.significand;
  std::int64_t place = shift;
  while (place < 0 && (significand & 1) == 0) {
    significand >>= 1;
    ++place;
  }
  Natural factor = weight;
  while (place < 0) {  // as a sum of products, the weight has the zeros
    for (std::size_t i = 0; i < factor.size(); ++i) {
      const std::uint64_t above = i + 1 < factor.size() ? factor[i + 1] : 0;
      factor[i] = static_cast<std::uint32_t>((above << limb_bits | factor[i]) >> 1);
    }
    ++place;
  }
  for (std::size_t i = 0; i < factor.size(); ++i) {
    const std::uint64_t word = factor[i];
    if (word == 0) continue;
    const std::size_t at = static_cast<std::size_t>(place) + i * limb_bits;
    add_shifted(words, partial.words, (significand & limb_mask) * word, at, number.is_negative);
    add_shifted(words, partial.words, (significand >> limb_bits) * word, at + limb_bits, number.is_negative);
  }
}

const Natural& weight_of_one() {
  static const Natural one{0, 0, 1};
  return one;
}

void add_floats_to_whole(std::uint32_t* words, const Partial& partial, double sum, double rest) {
  add_to_whole(words, partial, sum, weight_of_one());
  if (rest != 0) add_to_whole(words, partial, rest, weight_of_one());
}

void add_words(std::uint32_t* words, const std::uint32_t* others, std::size_t count) {
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < count; ++i) {
    carry += std::uint64_t{words[i]} + others[i];
    words[i] = static_cast<std::uint32_t>(carry);
    carry >>= limb_bits;
  }
  words[count] |= others[count];
}

std::uint64_t rounded_whole(const std::uint32_t* words, const Partial& partial, const Divisor64& divisor,
                            const BinaryFormat& format) {
  const std::uint32_t flags = words[partial.words];
  if ((flags & has_nan) != 0 || ((flags & has_plus) != 0 && (flags & has_minus) != 0)) return format.nan();
  if ((flags & has_plus) != 0) return format.infinity();
  if ((flags & has_minus) != 0) return format.infinity() | format.sign();
  Natural magnitude(words, words + partial.words);
  const bool is_negative = magnitude.back() >> (limb_bits - 1) != 0;
  if (is_negative) {
    std::uint64_t carry = 1;
    for (std::uint32_t& word : magnitude) {
      carry += static_cast<std::uint32_t>(~word);
      word = static_cast<std::uint32_t>(carry);
      carry >>= limb_bits;
    }
  }
  trim(magnitude);
  if (magnitude.empty()) return (flags & is_no_negative_zero) != 0 ? 0 : format.sign();
  Quotient quotient = divide(magnitude, divisor.words);
  quotient.exponent += partial.least_unit + static_cast<std::int64_t>(fraction_bits) - divisor.exponent;
  return rounded(quotient, format) | (is_negative ? format.sign() : 0);
}

void store_bits(unsigned char* results, std::size_t element, std::uint64_t bits, std::size_t nbytes) {
  // Of little-endian words, as the core reads them everywhere.
  std::memcpy(results + element * nbytes, &bits, nbytes);
}

}  // namespace

Blocks all_blocks(std::size_t count) {
  Blocks all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

Blocks for_each(const Blocks& blocks, const std::function<bool(std::size_t)>& work) {
  Blocks left;
  std::mutex mutex;
  const auto run_task = [&](std::size_t task) {
    const PlainArithmetic mode;
    const std::size_t end = std::min(blocks.size(), (task + 1) * task_blocks);
    Blocks here;
    for (std::size_t i = task * task_blocks; i < end; ++i) {
      if (!work(blocks[i])) here.push_back(blocks[i]);
    }
    if (here.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    left.insert(left.end(), here.begin(), here.end());
  };
  const std::size_t tasks = (blocks.size() + task_blocks - 1) / task_blocks;
  // Nothing ends it early: a sum that has half of a contribution is none.
  if (tasks == 1) run_task(0);
  else Pool::of_this_process().run(tasks, run_task, [] { return false; });
  std::sort(left.begin(), left.end());
  return left;
}

Blocks add(const Partial& partial, const PartialLoops& loops, Dtype dtype, const Pieces& pieces, const Factor& factor,
           const Blocks& blocks) {
  const std::size_t nbytes = element_bytes[static_cast<int>(dtype)];
  const bool is_wide = dtype == Dtype::float64;
  return for_each(blocks, [&](std::size_t block) {
    const std::size_t begin = block * partial_length, count = partial.count_in(block);
    double values[partial_length];
    std::fill(values + count, values + partial_length, -0.0);
    visit(pieces, begin, count, [&](std::uint64_t start, std::size_t first, std::size_t at, std::size_t length) {
      loops.read[static_cast<int>(dtype)](reinterpret_cast<const char*>(start) + first * nbytes, values + at, length);
    });
    switch (static_cast<Mode>(partial.modes[block])) {
      case Mode::single: return factor.number != 0 && loops.add_single(partial.sums + begin, values, factor.number);
      case Mode::pair: return loops.add_pair(partial.sums + begin, partial.rests + begin, values, factor, is_wide);
      default:
        for (std::size_t i = 0; i < count; ++i) add_to_whole(partial.whole(block, i), partial, values[i], factor.words);
        return true;
    }
  });
}

Blocks merge(const Partial& partial, const PartialLoops& loops, const Partial& other, const Blocks& blocks) {
  static const Factor once;
  return for_each(blocks, [&](std::size_t block) {
    const std::size_t begin = block * partial_length, count = partial.count_in(block);
    const auto mode = static_cast<Mode>(partial.modes[block]), brought = static_cast<Mode>(other.modes[block]);
    if (mode < brought) return false;
    const double* const sums = other.sums + begin;
    const double* const rests = brought == Mode::pair ? other.rests + begin : nullptr;
    if (mode == Mode::single) return loops.add_single(partial.sums + begin, sums, 1);
    if (mode == Mode::pair) {
      // Both or none: into a copy.
      double kept[2][partial_length];
      std::memcpy(kept[0], partial.sums + begin, sizeof kept[0]);
      std::memcpy(kept[1], partial.rests + begin, sizeof kept[1]);
      if (!loops.add_pair(kept[0], kept[1], sums, once, false)) return false;
      if (rests != nullptr) {
        double further[partial_length];  // a rest of 0 must not change the sign of a sum
        for (std::size_t i = 0; i < partial_length; ++i) further[i] = rests[i] == 0 ? -0.0 : rests[i];
        if (!loops.add_pair(kept[0], kept[1], further, once, false)) return false;
      }
      std::memcpy(partial.sums + begin, kept[0], sizeof kept[0]);
      std::memcpy(partial.rests + begin, kept[1], sizeof kept[1]);
      return true;
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t* const words = partial.whole(block, i);
      if (brought == Mode::whole) add_words(words, other.whole(block, i), partial.words);
      else add_floats_to_whole(words, partial, sums[i], rests != nullptr ? rests[i] : 0);
    }
    return true;
  });
}

void make_whole(const Partial& partial, const Blocks& blocks) {
  for_each(blocks, [&](std::size_t block) {
    const std::size_t begin = block * partial_length;
    const bool is_pair = static_cast<Mode>(partial.modes[block]) == Mode::pair;
    for (std::size_t i = 0; i < partial.count_in(block); ++i) {
      add_floats_to_whole(partial.whole(block, i), partial, partial.sums[begin + i], is_pair ? partial.rests[begin + i] : 0);
    }
    return true;
  });
}

void finish(const Partial& partial, const PartialLoops& loops, Dtype dtype, const Pieces& pieces, const Divisor64& divisor) {
  const std::size_t nbytes = element_bytes[static_cast<int>(dtype)];
  const BinaryFormat format = format_of(dtype);
  for_each(all_blocks(partial.block_count()), [&](std::size_t block) {
    const std::size_t begin = block * partial_length, count = partial.count_in(block);
    const auto mode = static_cast<Mode>(partial.modes[block]);
    alignas(64) unsigned char results[partial_length * sizeof(double)];
    if (mode == Mode::whole) {
      for (std::size_t i = 0; i < count; ++i) {
        store_bits(results, i, rounded_whole(partial.whole(block, i), partial, divisor, format), nbytes);
      }
    } else {
      const double* const sums = partial.sums + begin;
      const double* const rests = mode == Mode::pair ? partial.rests + begin : nullptr;
      bool fails[partial_length];
      if (divisor.high != 0) loops.finish[static_cast<int>(dtype)](sums, rests, divisor, results, fails);
      else std::fill(fails, fails + partial_length, true);
      std::vector<std::uint32_t> words;
      for (std::size_t i = 0; i < count; ++i) {
        if (!fails[i]) continue;
        words.assign(partial.words + 1, 0);
        add_floats_to_whole(words.data(), partial, sums[i], rests != nullptr ? rests[i] : 0);
        store_bits(results, i, rounded_whole(words.data(), partial, divisor, format), nbytes);
      }
    }
    visit(pieces, begin, count, [&](std::uint64_t start, std::size_t first, std::size_t at, std::size_t length) {
      std::memcpy(reinterpret_cast<char*>(start) + first * nbytes, results + at * nbytes, length * nbytes);
    });
    return true;
  });
}

}  // namespace treefold
