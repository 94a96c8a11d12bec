// Sums over whole arrays without Python: reads arrays, and prints their sums before they are rounded.
//
// Each case is three numbers of 64 bits (whether it is float64, how many factors, how many elements) and the factors.
#include <cstdio>
#include <cstring>
#include <vector>

#include "../floating_mode.hpp"
#include "../whole_sums.hpp"

namespace {

using namespace treefold;
using namespace treefold::TREEFOLD_LEVEL;

template <class Format>
void add(const std::vector<unsigned char>& bytes, const std::uint64_t* of, Superaccumulator& total) {
  const unsigned char* const second = bytes.data() + (of[1] - 1) * of[2] * sizeof(typename Format::Element);
  const SumSpan span{bytes.data(), second, 0, of[2]};
  if (of[1] > 1) whole_sum<Terms<Format, true>>(&span, 1, total);
  else whole_sum<Terms<Format, false>>(&span, 1, total);
}

}  // namespace

int main(int count, char** arguments) {
  const PlainArithmetic mode;
  if (count > 1 && std::strcmp(arguments[1], "none") == 0) asked_certificate = Certificate::none;
  std::uint64_t of[3];
  while (std::fread(of, sizeof of, 1, stdin) == 1) {
    std::vector<unsigned char> bytes(of[1] * of[2] * (of[0] ? 8 : 4));
    if (std::fread(bytes.data(), 1, bytes.size(), stdin) != bytes.size()) return 1;
    Superaccumulator total;
    if (of[0]) add<Plain<double>>(bytes, of, total);
    else add<Plain<float>>(bytes, of, total);
    const auto words = total.words();
    for (std::size_t i = words.size(); i > 0; --i) std::printf("%08x", static_cast<unsigned>(words[i - 1]));
    std::printf(" %d%d%d\n", total.has_nan, total.has_plus, total.has_minus);
  }
}
