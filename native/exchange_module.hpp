// Reads the memory of other frameworks' tensors, and makes new tensors, by DLPack's C exchange API.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// The table that DLPack 1.2 calls DLPackExchangeAPI: a type shows it as the capsule __dlpack_c_exchange_api__.
// https://dmlc.github.io/dlpack/latest/c_api.html
struct Version {
  std::uint32_t major, minor;
};
struct ManagedTensor {
  Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  nanobind::dlpack::dltensor tensor;
};
struct ExchangeTable {
  Version version;
  ExchangeTable* previous;
  void* allocate;
  void* managed_from_object;
  int (*object_from_managed)(ManagedTensor*, void**);
  int (*tensor_of_object)(void*, nanobind::dlpack::dltensor*);
  void* current_stream;
};

// Returns the table of a capsule. Raises ValueError if it has another version.
const ExchangeTable& table_of(const nanobind::capsule& exchange);
bool is_row_major(const nanobind::dlpack::dltensor& tensor);

// A shape and its strides in elements, behind each other.
using Layout = std::shared_ptr<const std::vector<std::int64_t>>;
Layout row_major_layout(const std::vector<Py_ssize_t>& shape);

struct NewTensor {
  nanobind::object tensor;
  void* start;
};
// Returns an uninitialised tensor in host memory, on a result's memory, and where that begins.
NewTensor new_tensor(const ExchangeTable& table, const Layout& layout, nanobind::dlpack::dtype dtype, std::size_t nbytes);
