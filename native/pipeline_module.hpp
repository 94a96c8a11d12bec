// The simulator's clock at the border to Python.
#pragma once

#include <nanobind/nanobind.h>

void define_pipeline(nanobind::module_& module);
