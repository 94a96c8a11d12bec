// The namespace of a vector level, so that no code of one level can replace another's. Such code is compiled once per level,
// each time with other flags and another TREEFOLD_LEVEL. A file of no level has a namespace of its own.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__SSE2__) || defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef TREEFOLD_LEVEL
#define TREEFOLD_LEVEL of_no_level
#define TREEFOLD_LEVEL_NAME "none"
#endif
