// The part of the module that keeps exact partial sums.
#pragma once

#include <nanobind/nanobind.h>

void define_partials(nanobind::module_& module);
