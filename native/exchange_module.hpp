// Tensors of other frameworks on NumPy arrays' memory and back, by DLPack's table of C functions.
#pragma once

#include <nanobind/nanobind.h>

void define_exchange(nanobind::module_& module);
