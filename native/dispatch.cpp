#include "dispatch.hpp"

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

const std::vector<const Level*>& usable_levels() {
  static const std::vector<const Level*> levels = [] {
    std::vector<const Level*> found;
#if defined(TREEFOLD_X86_LEVELS)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
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
