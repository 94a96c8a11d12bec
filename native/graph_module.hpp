// Folds as operations of TensorFlow's graphs, at the border to Python.
#pragma once

#include <nanobind/nanobind.h>

void define_graphs(nanobind::module_& module);
