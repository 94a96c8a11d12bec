#include "exchange_module.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

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

// The owner of a tensor's memory. Small memory follows it in the same block, which saves an allocation.
struct Lent {
  ManagedTensor managed;
  Layout layout;
  std::unique_ptr<ResultMemory> large;
};

void give_back(ManagedTensor* managed) {
  auto* const lent = static_cast<Lent*>(managed->context);
  lent->~Lent();
  ::operator delete(lent);
}

Lent* lend(const Layout& layout, std::size_t nbytes, void*& start) {
  const bool is_large = ResultMemory::is_large(nbytes);
  std::unique_ptr<ResultMemory> large(is_large ? new ResultMemory(nbytes) : nullptr);
  std::size_t room = is_large ? 0 : nbytes + ResultMemory::alignment;
  auto* const lent = new (::operator new(sizeof(Lent) + room)) Lent{{}, layout, std::move(large)};
  start = is_large ? lent->large->start() : lent + 1;
  if (!is_large) std::align(ResultMemory::alignment, nbytes, start, room);
  return lent;
}

}  // namespace

NewTensor new_tensor(const ExchangeTable& table, const Layout& layout, nb::dlpack::dtype dtype, std::size_t nbytes) {
  nb::dlpack::dltensor tensor{};
  Lent* const lent = lend(layout, nbytes, tensor.data);
  // Shape and strides are those of the layout, which `lent` keeps alive as long as the tensor.
  auto* const shape = const_cast<std::int64_t*>(layout->data());  // DLPack knows no const
  const std::size_t ndim = layout->size() / 2;
  tensor.device.device_type = nb::device::cpu::value;
  tensor.ndim = static_cast<std::int32_t>(ndim);
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = shape + ndim;
  lent->managed = {spoken, lent, &give_back, 0, tensor};
  void* made = nullptr;
  if (table.object_from_managed(&lent->managed, &made) != 0) {
    // No tensor has taken it over: the deleter runs here, and only here.
    give_back(&lent->managed);
    throw nb::python_error();
  }
  return {nb::steal(static_cast<PyObject*>(made)), tensor.data};
}
