// What the parts of the Python module share: errors, the loop for a dtype, and running a batch without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "batch.hpp"

// Raises ValueError.
[[noreturn]] void refuse(const std::string& sentence);

// What a batch does, by the numbers that Python passes. op is -1 for memory traffic without arithmetic.
struct Request {
  int op, accumulate;
  const treefold::Level* level;
  const std::vector<double>* weights = nullptr;
  double weight_sum = 0;
};

const treefold::Level& level_at(int index);
// Raises ValueError if the op or the accumulation does not exist.
Request fold_request(int op, int accumulate, int level);
// Returns an item without memory, length and number of contributions. Raises ValueError for a dtype that the op lacks.
treefold::Item item_of(int dtype, const Request& request);
// Folds, without the GIL unless the batch is too small for that to pay. Raises what a Python signal handler raised.
void run(const std::vector<treefold::Item>& items, const treefold::Manner& manner = {});
