// Arrays for results at the border to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

// Returns an uninitialised row-major array. Large memory comes from a cache and returns there with the last owner.
nanobind::object new_array(const std::vector<Py_ssize_t>& shape, nanobind::handle dtype);

void define_results(nanobind::module_& module);
