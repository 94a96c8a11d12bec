// Memory and arrays for results at the border to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

// Memory of one result, at a multiple of 64 bytes. Large memory comes from a cache and returns there, from any thread,
// with or without the GIL. The constructor needs the GIL: it raises MemoryError.
class ResultMemory {
 public:
  explicit ResultMemory(std::size_t nbytes);
  ~ResultMemory();
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;
  void* start() const { return start_; }

 private:
  void *block_, *start_;
  std::size_t nbytes_;
};

// Returns an uninitialised row-major array. Large memory comes from a cache and returns there with the last owner.
nanobind::object new_array(const std::vector<Py_ssize_t>& shape, nanobind::handle dtype);

void define_results(nanobind::module_& module);
