// Which vector levels there are here, and which is used.
#pragma once

#include <string>
#include <vector>

#include "elements.hpp"

namespace treefold {

// The levels that this build has and this processor can run, widest first.
const std::vector<const Level*>& usable_levels();

}  // namespace treefold
