#include "exchange_module.hpp"

#include <algorithm>

#include "results_module.hpp"

namespace nb = nanobind;

namespace {

constexpr std::uint32_t known_major = 1;
constexpr Version spoken{1, 2};

}  // namespace

const ExchangeTable& table_of(const nb::capsule& exchange) {
  auto* table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) throw nb::python_error();
  while (table != nullptr && table->version.major != known_major) table = table->previous;
  if (table == nullptr || table->tensor_of_object == nullptr || table->object_from_managed == nullptr) {
    throw nb::value_error("This table of DLPack is of an unknown version.");
  }
  return *table;
}

bool is_row_major(const nb::dlpack::dltensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t step = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] == 0) return true;
  }
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != step) return false;
    step *= tensor.shape[axis];
  }
  return true;
}

Layout row_major_layout(const std::vector<Py_ssize_t>& shape) {
  auto layout = std::make_shared<std::vector<std::int64_t>>(shape.begin(), shape.end());
  layout->resize(2 * shape.size());
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    (*layout)[shape.size() + axis] = step;
    step *= std::max<std::int64_t>(shape[axis], 1);
  }
  return layout;
}

namespace {

// What lives as long as a tensor: its memory, and what describes it to the framework.
struct Lent {
  explicit Lent(std::size_t nbytes) : memory(nbytes) {}
  ManagedTensor managed;
  ResultMemory memory;
  Layout layout;
};

void give_back(ManagedTensor* managed) { delete static_cast<Lent*>(managed->context); }

}  // namespace

NewTensor new_tensor(const ExchangeTable& table, const Layout& layout, nb::dlpack::dtype dtype, std::size_t nbytes) {
  auto* const lent = new Lent(nbytes);
  lent->layout = layout;
  auto* const shape = const_cast<std::int64_t*>(layout->data());  // DLPack knows no const
  const std::size_t ndim = layout->size() / 2;
  nb::dlpack::dltensor tensor{};
  tensor.data = lent->memory.start();
  tensor.device.device_type = nb::device::cpu::value;
  tensor.ndim = static_cast<std::int32_t>(ndim);
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = shape + ndim;
  lent->managed = {spoken, lent, &give_back, 0, tensor};
  void* made = nullptr;
  if (table.object_from_managed(&lent->managed, &made) != 0) {
    give_back(&lent->managed);
    throw nb::python_error();
  }
  return {nb::steal(static_cast<PyObject*>(made)), tensor.data};
}
