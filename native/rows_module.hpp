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

// Memory that a call reads, or reads and writes.
struct Extent {
  const char *begin, *end;
  bool is_written;
};

// Returns whether a tensor's storage holds all of an array, which DLPack leaves out: the storage may have been resized, or may
// have no memory, and the array then seems to begin at its offset from address zero. The first three of `methods` return the
// tensor's storage, the storage's nbytes, and the tensor's offset in it. No further one may return True.
bool is_whole(nanobind::handle tensor, const void* start, const nanobind::tuple& methods, std::size_t length,
              std::size_t itemsize);

void add_extents(std::vector<Extent>& extents, const Row& row, bool is_written);
// Tells whether no extent that is written overlaps another extent. Extents that are only read may overlap each other.
bool are_disjoint(std::vector<Extent>& extents);

void define_rows(nanobind::module_& module);
