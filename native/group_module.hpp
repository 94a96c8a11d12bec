// The part of the module for the ranks of one host. Empty where there is no shared memory of this kind.
#pragma once

#include <nanobind/nanobind.h>

void define_groups(nanobind::module_& module);
// The tables by which ranks agree, and what tests use to watch and disturb them.
void define_protocol(nanobind::module_& module);
