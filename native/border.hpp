// What the parts of the module have in common: who is refused, what folds a dtype, and how a batch is run.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "batch.hpp"

[[noreturn]] void refuse(const std::string& sentence);

// What a batch does, as Python's numbers say it; op -1: the traffic alone.
struct Request {
  int op, accumulate;
  const treefold::Level* level;
  const std::vector<double>* weights = nullptr;
  double weight_sum = 0;
};

const treefold::Level& level_at(int index);
// Refuses an op or an accumulation that there is not.
Request fold_request(int op, int accumulate, int level);
// An item that lacks its memory, its length and its number of contributions. Refuses a dtype that the op has no meaning for.
treefold::Item item_of(int dtype, const Request& request);
// Folds; the GIL is let go of meanwhile, unless the batch is too small for that. Raises what a handler of signals raised.
void run(const std::vector<treefold::Item>& items, const treefold::Manner& manner = {});
