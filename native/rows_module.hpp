// The part of the module that reads arrays into rows and folds them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

// One leaf in every replica: arrays of one shape and dtype, row-major and aligned, on one device. It owns them.
struct Row {
  nanobind::object backend, arrays, views, dtype, key;
  std::vector<void*> starts;
  std::vector<Py_ssize_t> shape;
  std::size_t length = 1, itemsize = 0;
  bool is_writable = true, is_on_host = true;

  std::size_t nbytes() const { return length * itemsize; }
};

// Memory of a call that is read, or read and written.
struct Extent {
  const char *begin, *end;
  bool is_written;
};

void add_extents(std::vector<Extent>& extents, const Row& row, bool is_written);
// Tells whether no extent that is written overlaps another extent. Extents that are only read may overlap each other.
bool are_disjoint(std::vector<Extent>& extents);

void define_rows(nanobind::module_& module);
