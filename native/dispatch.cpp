#include "dispatch.hpp"

#if defined(TREEFOLD_X86_LEVELS)
#include <cpuid.h>
#endif

namespace treefold {

#define TREEFOLD_DECLARE(name) \
  namespace name {             \
  const Level& level();        \
  }
#if defined(TREEFOLD_X86_LEVELS)
TREEFOLD_DECLARE(avx512)
TREEFOLD_DECLARE(avx2)
#endif
TREEFOLD_DECLARE(baseline)
TREEFOLD_DECLARE(plain)

#if defined(TREEFOLD_X86_LEVELS)
namespace {

// Not every compiler's __builtin_cpu_supports knows the name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace
#endif

const std::vector<const Level*>& usable_levels() {
  static const std::vector<const Level*> levels = [] {
    std::vector<const Level*> found;
#if defined(TREEFOLD_X86_LEVELS)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && has_f16c();
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      found.push_back(&avx512::level());
    }
    if (has_avx2) found.push_back(&avx2::level());
#endif
    found.push_back(&baseline::level());
    found.push_back(&plain::level());
    return found;
  }();
  return levels;
}

}  // namespace treefold
