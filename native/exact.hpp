// Certificates of exact sums, the weights of a MEAN as whole numbers, and the last tier of exact sums: whole numbers of any
// size. Shared by all vector levels; docs/how/numbers.md explains the tiers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "elements.hpp"

namespace treefold {

// How the first tier proves that its additions were exact: by the processor's flag, or by the exponents of the summands.
// With `none` it proves nothing, so the other tiers do all the work; tests ask for that.
#define TREEFOLD_CERTIFICATES(X) X(flag, "flag") X(integers, "integers") X(none, "none")
#define TREEFOLD_ENUMERATOR(name, text) name,
#define TREEFOLD_NAME(name, text) text,
enum class Certificate : int { TREEFOLD_CERTIFICATES(TREEFOLD_ENUMERATOR) };
constexpr const char* certificate_names[] = {TREEFOLD_CERTIFICATES(TREEFOLD_NAME)};
constexpr int certificate_count = sizeof certificate_names / sizeof *certificate_names;
#undef TREEFOLD_ENUMERATOR
#undef TREEFOLD_NAME

// The certificate that the user asks for. A level with a flag that fails its test uses integers instead.
inline std::atomic<Certificate> asked_certificate{Certificate::flag};

// Weights of a MEAN: whole numbers above 0, one per contribution, of one number of 32-bit words each, the lowest first.
class Weights {
 public:
  Weights(std::vector<std::uint32_t> words, std::size_t words_each);

  std::size_t count() const { return words_.size() / words_each_; }
  std::size_t words_each() const { return words_each_; }
  const std::uint32_t* operator[](std::size_t index) const { return words_.data() + index * words_each_; }
  bool has_zero() const;
  const std::vector<std::uint32_t>& sum() const { return sum_; }  // as many words as it needs

  // Few bits: the sum is below 2^29, so that quotients by it can be rounded twice, and these are the weights.
  bool are_small() const { return are_small_; }
  // Each weight has at most 53 bits without its factors of two, and all are near enough to each other. `scaled` is then the
  // weight times a power of two that is the same for all; high + low is `scaled`, in 26 bits each.
  bool are_split() const { return are_split_; }
  const double* scaled() const { return scaled_.data(); }
  const double* numbers() const { return numbers_.data(); }
  const double* high() const { return high_.data(); }
  const double* low() const { return low_.data(); }
  double sum_high() const { return sum_high_; }
  double sum_low() const { return sum_low_; }

 private:
  void split();

  std::vector<std::uint32_t> words_;
  std::size_t words_each_;
  std::vector<std::uint32_t> sum_;
  std::vector<double> numbers_, scaled_, high_, low_;
  double sum_high_ = 0, sum_low_ = 0;
  bool are_small_ = false, are_split_ = false;
};

// Returns the bits of element `at` of an exact SUM or MEAN, correctly rounded. They are bits of the dtype itself for floats;
// for a MEAN of integers of 8 and 16 bits, of float32; of longer ones, of float64.
std::uint64_t exact_bits(Dtype dtype, Op op, const void* const* sources, const Arithmetic& fold, std::size_t at);

}  // namespace treefold
