#include "partial_messages.hpp"

#include <algorithm>
#include <cstring>

namespace treefold {

namespace {

// One block: its exact sums so far, and whether they are held in pairs of floats.
struct Block {
  alignas(64) double sums[partial_length];
  alignas(64) double rests[partial_length];
  bool is_pair;

  explicit Block(bool is_wide) : is_pair(is_wide) {
    std::fill(sums, sums + partial_length, -0.0);
    std::fill(rests, rests + partial_length, 0.0);
  }

  // Returns false, with the sums as they were, if they would have to be held in the next mode.
  bool add(const PartialLoops& loops, const double* values, const Factor& factor, bool is_wide) {
    if (is_pair) return loops.add_pair(sums, rests, values, factor, is_wide);
    return factor.number != 0 && loops.add_single(sums, values, factor.number);
  }
};

bool is_half(Dtype dtype) { return dtype == Dtype::float16 || dtype == Dtype::bfloat16; }

std::size_t block_bytes(Dtype dtype) { return partial_length * (is_half(dtype) ? 4 : dtype == Dtype::float64 ? 16 : 8); }

void read(const PartialLoops& loops, Dtype dtype, const void* row, std::size_t begin, std::size_t count, double* values) {
  const auto* const start = static_cast<const char*>(row) + begin * element_bytes[static_cast<int>(dtype)];
  loops.read[static_cast<int>(dtype)](start, values, count);
  std::fill(values + count, values + partial_length, -0.0);
}

// Adds what a message has of a block; false if it has nothing, or pairs do not hold the sums.
bool add_message(Block& block, const PartialLoops& loops, Dtype dtype, const unsigned char* sums, unsigned char form) {
  static const Factor once;
  if (form == 0) return false;
  double values[2][partial_length];
  const std::size_t parts = dtype == Dtype::float64 ? 2 : 1;
  if (is_half(dtype)) loops.widen(sums, form, values[0]);
  else std::memcpy(values, sums, parts * sizeof values[0]);
  // A rest of 0 must not change the sign of a sum.
  if (parts == 2) std::replace(values[1], values[1] + partial_length, 0.0, -0.0);
  for (std::size_t part = 0; part < parts; ++part) {
    if (block.add(loops, values[part], once, false)) continue;
    if (block.is_pair) return false;
    block.is_pair = true;
    if (!block.add(loops, values[part], once, false)) return false;
  }
  return true;
}

std::size_t blocks_in(std::size_t length) { return (length + partial_length - 1) / partial_length; }

}  // namespace

std::size_t message_bytes(Dtype dtype, std::size_t length) { return blocks_in(length) * (block_bytes(dtype) + 1); }

void write_message(const PartialLoops& loops, Dtype dtype, const Weighted& own, std::size_t length, unsigned char* message) {
  const bool is_wide = dtype == Dtype::float64;
  const std::size_t count = blocks_in(length), nbytes = block_bytes(dtype);
  unsigned char* const forms = message + count * nbytes;
  for_each(all_blocks(count), [&](std::size_t number) {
    Block block(is_wide);
    const std::size_t begin = number * partial_length, here = std::min(partial_length, length - begin);
    unsigned char* const sums = message + number * nbytes;
    double values[partial_length];
    bool is_held = true;
    for (std::size_t i = 0; is_held && i < own.rows.size(); ++i) {
      read(loops, dtype, own.rows[i], begin, here, values);
      is_held = block.add(loops, values, own.factors[i], is_wide);
    }
    if (is_half(dtype)) {
      if (!is_held) std::fill(block.sums, block.sums + partial_length, 0.0);
      const unsigned char form = loops.narrow(block.sums, sums);
      forms[number] = is_held ? form : 0;
    } else {
      std::memcpy(sums, block.sums, sizeof block.sums);
      if (is_wide) std::memcpy(sums + sizeof block.sums, block.rests, sizeof block.rests);
      forms[number] = is_held;
    }
    return true;
  });
}

Blocks fold_messages(const PartialLoops& loops, Dtype dtype, const Weighted& own, const std::vector<const void*>& messages,
                     std::size_t length, const Divisor64& divisor, void* result) {
  const bool is_wide = dtype == Dtype::float64;
  const std::size_t count = blocks_in(length), nbytes = block_bytes(dtype), element = element_bytes[static_cast<int>(dtype)];
  return for_each(all_blocks(count), [&](std::size_t number) {
    Block block(is_wide);
    const std::size_t begin = number * partial_length, here = std::min(partial_length, length - begin);
    double values[partial_length];
    for (std::size_t i = 0; i < own.rows.size(); ++i) {
      read(loops, dtype, own.rows[i], begin, here, values);
      if (block.add(loops, values, own.factors[i], is_wide)) continue;
      if (block.is_pair) return false;
      block.is_pair = true;
      if (!block.add(loops, values, own.factors[i], is_wide)) return false;
    }
    for (const void* one : messages) {
      const auto* const message = static_cast<const unsigned char*>(one);
      if (!add_message(block, loops, dtype, message + number * nbytes, message[count * nbytes + number])) return false;
    }
    alignas(64) unsigned char results[partial_length * sizeof(double)];
    bool fails[partial_length];
    if (divisor.high == 0) return false;
    loops.finish[static_cast<int>(dtype)](block.sums, block.is_pair ? block.rests : nullptr, divisor, results, fails);
    if (std::any_of(fails, fails + here, [](bool one) { return one; })) return false;
    std::memcpy(static_cast<unsigned char*>(result) + begin * element, results, here * element);
    return true;
  });
}

}  // namespace treefold
