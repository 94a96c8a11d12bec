// The vector levels that this machine can run.
#pragma once

#include <string>
#include <vector>

#include "elements.hpp"

namespace treefold {

// The levels that this build has and this processor can run, widest first.
const std::vector<const Level*>& usable_levels();

}  // namespace treefold
