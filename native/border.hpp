// The code that all parts of the Python module share: errors, the loop for a dtype, and running a batch without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "batch.hpp"
#include "exact.hpp"

// Raises ValueError.
[[noreturn]] void refuse(const std::string& sentence);

// The operation of a batch, by the numbers that Python passes. op is -1 for memory traffic without arithmetic.
struct Request {
  int op, accumulate;
  const treefold::Level* level;
  const treefold::Weights* weights = nullptr;
};

const treefold::Level& level_at(int index);
// Raises ValueError if the op or the accumulation does not exist.
Request fold_request(int op, int accumulate, int level);
// Returns an item without memory, length and number of contributions. Raises ValueError for a dtype that the op lacks.
treefold::Item item_of(int dtype, const Request& request);
// Reads weights in Python's form: whole numbers of `words_each` 32-bit words. Raises ValueError for other bytes.
std::vector<std::uint32_t> words_of(const nanobind::bytes& weights, std::size_t words_each);
// Calls `body` without the GIL; `interrupted` tells whether a Python signal handler has raised an error. If `body` returns
// true, raises that error.
void without_gil(const std::function<bool(const std::function<bool()>& interrupted)>& body);
// Folds, without the GIL unless the batch is too small for that to pay. Raises the error of a Python signal handler.
void run(const std::vector<treefold::Item>& items, const treefold::Manner& manner = {});
