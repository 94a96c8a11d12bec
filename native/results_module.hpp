// Memory and arrays for results at the border to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

// Memory of one large result, at a multiple of 64 bytes, from a cache to which it returns, from any thread, with or
// without the GIL. The constructor needs the GIL: it raises MemoryError.
class ResultMemory {
 public:
  static constexpr std::size_t alignment = 64;
  // Smaller results do not enter the cache: the system's allocator is as fast for them.
  static bool is_large(std::size_t nbytes) { return nbytes >= std::size_t{1} << 16; }

  explicit ResultMemory(std::size_t nbytes);
  ~ResultMemory();
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;
  void* start() const { return start_; }

 private:
  void* start_;
  std::size_t nbytes_;
};

// Returns an uninitialised row-major array. Large memory comes from a cache and returns there with the last owner.
nanobind::object new_array(const std::vector<Py_ssize_t>& shape, nanobind::handle dtype);

void define_results(nanobind::module_& module);
