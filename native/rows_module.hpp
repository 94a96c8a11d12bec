// Rows at the border to Python: one leaf in every replica, as it lies in memory.
#pragma once

#include <nanobind/nanobind.h>

void define_rows(nanobind::module_& module);
