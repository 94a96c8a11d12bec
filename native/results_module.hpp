// Arrays for results at the border to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

// An uninitialised row-major array. Large memory is taken from a cache, and returns there when its last owner is gone.
nanobind::object new_array(const std::vector<Py_ssize_t>& shape, nanobind::handle dtype);

void define_results(nanobind::module_& module);
