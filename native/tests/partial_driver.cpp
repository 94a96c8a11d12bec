// Compares partial sums, added in random trees, with whole numbers of all contributions at once (exact.cpp), without Python:
// for processors and seeded faults. Prints how many results differ, and ends with 1 if any does. `partial_driver [rounds]`.
#include "../partial.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#define TREEFOLD_LEVEL driven
#define TREEFOLD_LEVEL_NAME "driven"
#include "../level.cpp"
#include "numbers.hpp"

namespace {

using namespace treefold;
using namespace treefold::drivers;

constexpr std::size_t length = 200;  // a whole block, and a part of one

// A partial sum with its memory, as Python keeps it.
class Sum {
 public:
  explicit Sum(Dtype dtype) : is_wide_(dtype == Dtype::float64), words_(is_wide_ ? 72 : 16) {
    modes_.assign(blocks, static_cast<std::uint8_t>(is_wide_ ? Mode::pair : Mode::single));
    sums_.assign(blocks * partial_length, -0.0);
    rests_.assign(blocks * partial_length, 0.0);
    places_.assign(blocks, 0);
    wholes_.assign(blocks * partial_length * (words_ + 1), 0);
  }

  Partial view() {
    return {length,         words_,        (is_wide_ ? -1074 : -149) - 64, modes_.data(), sums_.data(), rests_.data(),
            places_.data(), wholes_.data()};
  }

  // Does the work for all blocks, and again for those that it leaves, one mode higher.
  template <class Work>
  void in_modes(const Work& work) {
    Blocks left(blocks);
    std::iota(left.begin(), left.end(), std::size_t{0});
    while (!(left = work(left)).empty()) {
      for (const std::size_t block : left) {
        if (modes_[block] == static_cast<std::uint8_t>(Mode::pair)) {
          places_[block] = used_++;
          make_whole(view(), {block});
        }
        ++modes_[block];
        raised[modes_[block]] += 1;
      }
    }
  }

  static inline std::size_t raised[3] = {0, 0, 0};  // how many blocks came into each mode

 private:
  static constexpr std::size_t blocks = (length + partial_length - 1) / partial_length;
  bool is_wide_;
  std::size_t words_;
  std::vector<std::uint8_t> modes_;
  std::vector<double> sums_, rests_;
  std::vector<std::uint32_t> places_, wholes_;
  std::uint32_t used_ = 0;
};

Factor factor_of(std::uint32_t weight) {
  Factor factor;
  factor.words = {0, 0, weight};
  factor.number = weight < (1u << 29) ? weight : 0;
  if (weight != 1) {
    for (const std::uint32_t piece : {weight & ~((1u << 26) - 1), weight & ((1u << 26) - 1)}) {
      if (piece != 0) factor.pieces.push_back(piece);
    }
  }
  return factor;
}

std::size_t compare(const Form& form, Op op, std::size_t count, std::uint64_t spread, std::uint32_t most_weight) {
  const std::size_t nbytes = static_cast<std::size_t>(form.bits) / 8;
  const PartialLoops& loops = *driven::level().partial;
  std::vector<std::vector<unsigned char>> contributions(count, std::vector<unsigned char>(length * nbytes));
  const bool is_central = draw() % 2 == 0;
  for (std::size_t at = 0; at < length; ++at) {
    std::vector<std::uint64_t> bits = column(form, count, spread, is_central);
    if (at % 50 == 7) bits.assign(count, std::uint64_t{1} << (form.bits - 1));  // -0, which they stay
    for (std::size_t r = 0; r < count; ++r) std::memcpy(contributions[r].data() + at * nbytes, &bits[r], nbytes);
  }
  std::vector<std::uint32_t> numbers;
  std::uint64_t total = 0;
  for (std::size_t r = 0; r < count; ++r) {
    numbers.push_back(op == Op::sum ? 1 : static_cast<std::uint32_t>(draw() % most_weight) + 1);
    total += numbers.back();
  }
  std::vector<Sum> sums(3, Sum(form.dtype));
  const std::int64_t offsets[] = {0, static_cast<std::int64_t>(length)};
  for (std::size_t r = 0; r < count; ++r) {
    const std::uint64_t start = reinterpret_cast<std::uintptr_t>(contributions[r].data());
    Sum& sum = sums[draw() % sums.size()];
    const Factor factor = factor_of(numbers[r]);
    sum.in_modes(
        [&](const Blocks& blocks) { return add(sum.view(), loops, form.dtype, {&start, offsets, 1}, factor, blocks); });
  }
  for (const std::size_t other : {1, 2}) {
    sums[0].in_modes([&](const Blocks& blocks) { return merge(sums[0].view(), loops, sums[other].view(), blocks); });
  }
  std::vector<unsigned char> result(length * nbytes);
  const std::uint64_t start = reinterpret_cast<std::uintptr_t>(result.data());
  Divisor64 divisor{1, 0, 1, {1}, 64};
  if (op == Op::mean) {
    const double number = static_cast<double>(total);
    divisor = {number, 0, (total & (total - 1)) == 0 ? 1 / number : 0, {}, 64};
    divisor.words = {static_cast<std::uint32_t>(total), static_cast<std::uint32_t>(total >> 32)};
    trim(divisor.words);
  }
  finish(sums[0].view(), loops, form.dtype, {&start, offsets, 1}, divisor);

  std::vector<const void*> sources;
  for (const auto& one : contributions) sources.push_back(one.data());
  const Weights weights(numbers, 1);
  Arithmetic fold;
  fold.count = count;
  if (op == Op::mean) fold.weights = &weights;
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < length; ++at) {
    const std::uint64_t expected = exact_bits(form.dtype, op, sources.data(), fold, at);
    wrong += std::memcmp(result.data() + at * nbytes, &expected, nbytes) != 0;
  }
  return wrong;
}

}  // namespace

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 4;
  std::size_t wrong = 0, compared = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const Form& form : forms) {
      for (const std::size_t contributions : {1, 2, 3, 5, 8, 13, 33, 64}) {
        for (const std::uint64_t spread : {0, 2, 12, 29, 60, 100, 2000}) {
          wrong += compare(form, Op::sum, contributions, spread, 1);
          for (const std::uint32_t most : {1u, 5000u, 0xffffffffu})
            wrong += compare(form, Op::mean, contributions, spread, most);
          compared += 4 * length;
        }
      }
    }
  }
  std::printf("partial sums: %zu of %zu wrong, %zu blocks became pairs and %zu whole numbers\n", wrong, compared,
              Sum::raised[1], Sum::raised[2]);
  return wrong != 0;
}
