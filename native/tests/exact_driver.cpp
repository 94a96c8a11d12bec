// Compares the tiers of exact sums and means with whole numbers (exact.cpp), without Python: for compilers, processors and
// seeded faults. Prints how many results differ, and ends with 1 if any does. `exact_driver flag|integers|none [blocks]`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define TREEFOLD_LEVEL driven
#define TREEFOLD_LEVEL_NAME "driven"
#include "../level.cpp"
#include "numbers.hpp"

namespace {

using namespace treefold;
using namespace treefold::drivers;

std::size_t compare(const Form& form, Op op, std::size_t count, std::uint64_t spread, const Weights* weights) {
  constexpr std::size_t length = 600;
  const std::size_t nbytes = static_cast<std::size_t>(form.bits) / 8;
  std::vector<std::vector<unsigned char>> contributions(count, std::vector<unsigned char>(length * nbytes));
  for (std::size_t at = 0; at < length; ++at) {
    const std::vector<std::uint64_t> bits = column(form, count, spread);
    for (std::size_t r = 0; r < count; ++r) std::memcpy(contributions[r].data() + at * nbytes, &bits[r], nbytes);
  }
  std::vector<const void*> sources;
  for (const auto& one : contributions) sources.push_back(one.data());
  std::vector<unsigned char> result(length * nbytes);
  void* const targets[] = {result.data()};
  Arithmetic fold;
  fold.count = count;
  fold.weights = weights;
  const Level& level = driven::level();
  const auto dtype = static_cast<int>(form.dtype);
  const Loop loop = weights ? level.weighted_mean[dtype] : level.loops[dtype][static_cast<int>(op)][0];
  loop(sources.data(), fold, targets, 1, 0, length, false);
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < length; ++at) {
    const std::uint64_t expected = exact_bits(form.dtype, op, sources.data(), fold, at);
    wrong += std::memcmp(result.data() + at * nbytes, &expected, nbytes) != 0;
  }
  return wrong;
}

// Folds one element of given contributions; tells whether it is wrong.
template <class T>
bool is_wrong(Dtype dtype, Op op, const std::vector<T>& contributions, const Weights* weights) {
  std::vector<const void*> sources;
  for (const T& one : contributions) sources.push_back(&one);
  T result{}, expected{};
  void* const targets[] = {&result};
  Arithmetic fold;
  fold.count = contributions.size();
  fold.weights = weights;
  const Level& level = driven::level();
  const int number = static_cast<int>(dtype);
  (weights ? level.weighted_mean[number] : level.loops[number][static_cast<int>(op)][0])(sources.data(), fold, targets, 1, 0, 1,
                                                                                         false);
  const std::uint64_t bits = exact_bits(dtype, op, sources.data(), fold, 0);
  std::memcpy(&expected, &bits, sizeof expected);
  return std::memcmp(&result, &expected, sizeof result) != 0;
}

// What random numbers do not meet: the edge of what exponents prove, and halves of bfloat16's least number.
std::size_t wrong_edges() {
  const std::vector<float> apart{0x1p50f,   0x1p50f,        0x1.8p50f,      0x1.8p50f,
                                 0x1.8p50f, 0x1.800008p50f, 0x1.00000ap23f, -0x1.000008p23f};
  const std::vector<std::uint16_t> least{1, 0};
  const Weights few({(1u << 27) + 1, 1u << 27}, 1), more({(1u << 30) + 1, 1u << 30}, 1);
  return is_wrong(Dtype::float32, Op::sum, apart, nullptr) + is_wrong(Dtype::bfloat16, Op::mean, least, &few) +
         is_wrong(Dtype::bfloat16, Op::mean, least, &more);
}

}  // namespace

int main(int count, char** words) {
  const std::string asked = count > 1 ? words[1] : "flag";
  const int rounds = count > 2 ? std::atoi(words[2]) : 20;
  for (int i = 0; i < certificate_count; ++i) {
    if (asked == certificate_names[i]) asked_certificate = static_cast<Certificate>(i);
  }
  const Certificate used = driven::level().certificate();
  std::size_t wrong = wrong_edges(), compared = 3;
  for (int round = 0; round < rounds; ++round) {
    for (const Form& form : forms) {
      for (const std::size_t replicas : {1, 2, 3, 5, 7, 8, 13, 33, 64}) {
        std::vector<std::uint32_t> words_of_weights;
        for (std::size_t r = 0; r < replicas; ++r)
          words_of_weights.push_back(static_cast<std::uint32_t>(draw() >> (round % 2 ? 36 : 57)) + 1);
        const Weights weights(words_of_weights, 1);
        for (const std::uint64_t spread : {2, 12, 20, 29, 60, 100, 2000}) {
          wrong += compare(form, Op::sum, replicas, spread, nullptr);
          wrong += compare(form, Op::mean, replicas, spread, nullptr);
          wrong += compare(form, Op::mean, replicas, spread, &weights);
          compared += 3 * 600;
        }
      }
    }
  }
  std::printf("%s: %zu of %zu wrong\n", certificate_names[static_cast<int>(used)], wrong, compared);
  return wrong != 0;
}
