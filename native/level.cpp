// One vector level: compiled several times, each time with other flags and another TREEFOLD_LEVEL.
#include "table.hpp"
