// One vector level: compiled several times, each time with other flags and another TREEFOLD_LEVEL.
#include <cfloat>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "arithmetic.hpp"
#include "elements.hpp"
#include "exact.hpp"
#include "overflow.hpp"

#if defined(__SSE2__) || defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treefold::TREEFOLD_LEVEL {

#include "half.hpp"
#include "vectors.hpp"
#include "formats.hpp"
#include "loops.hpp"
#include "window.hpp"
#include "exact_rounding.hpp"
#include "exact_loops.hpp"
#include "special.hpp"
#include "table.hpp"

}  // namespace treefold::TREEFOLD_LEVEL
