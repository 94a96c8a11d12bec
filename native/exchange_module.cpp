#include "exchange_module.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#define NO_IMPORT_ARRAY
#include <numpy/ndarrayobject.h>

#include <cstdint>
#include <memory>

namespace nb = nanobind;

namespace {

constexpr std::uint32_t known_major = 1;
constexpr Version spoken{1, 2};
static_assert(sizeof(npy_intp) == sizeof(std::int64_t), "NumPy's shapes are DLPack's on machines of 64 bits only.");

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

namespace {

// Keeps the array alive whose memory a tensor uses.
struct Lent {
  ManagedTensor managed;
  PyObject* array;
  std::int64_t strides[NPY_MAXDIMS];
};

void give_back(ManagedTensor* managed) {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(managed->context));
  if (!Py_IsInitialized()) return;  // the last tensors may outlive the interpreter
  const nb::gil_scoped_acquire held;
  Py_DECREF(lent->array);
}

nb::object tensor_on(nb::handle object, const ExchangeTable& table, std::uint8_t code) {
  if (!PyArray_Check(object.ptr())) throw nb::type_error("Tensors are made on NumPy arrays.");
  nb::object held = nb::borrow(object);
  if (!PyArray_ISCARRAY(reinterpret_cast<PyArrayObject*>(object.ptr()))) {
    held = nb::steal(PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(object.ptr()), NPY_CORDER));
    if (!held.is_valid()) throw nb::python_error();
  }
  auto* const array = reinterpret_cast<PyArrayObject*>(held.ptr());
  std::unique_ptr<Lent> lent(new Lent);  // its strides are left as they are
  std::int64_t step = 1;
  for (int axis = PyArray_NDIM(array) - 1; axis >= 0; --axis) {
    lent->strides[axis] = step;
    step *= PyArray_DIM(array, axis) == 0 ? 1 : PyArray_DIM(array, axis);
  }
  nb::dlpack::dltensor tensor;
  tensor.data = PyArray_DATA(array);
  tensor.device.device_type = nb::device::cpu::value;
  tensor.ndim = PyArray_NDIM(array);
  tensor.dtype = {code, static_cast<std::uint8_t>(8 * PyArray_ITEMSIZE(array)), 1};
  tensor.shape = reinterpret_cast<std::int64_t*>(PyArray_DIMS(array));
  tensor.strides = lent->strides;
  lent->managed = {spoken, lent.get(), &give_back, 0, tensor};
  lent->array = held.release().ptr();
  void* made = nullptr;
  Lent* const given = lent.release();
  if (table.object_from_managed(&given->managed, &made) != 0) {
    give_back(&given->managed);
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(made));
}

nb::list tensors(const nb::capsule& exchange, const nb::sequence& arrays, std::uint8_t code) {
  const ExchangeTable& table = table_of(exchange);
  nb::list result;
  for (nb::handle array : arrays) result.append(tensor_on(array, table, code));
  return result;
}

}  // namespace

void define_exchange(nb::module_& module) {
  module.def("tensors", &tensors, nb::arg("exchange"), nb::arg("arrays"), nb::arg("code"),
             "Return tensors on the memory of arrays, copied unless row-major and writable.\n\n"
             "``code``: what DLPack calls their kind of dtype.");
}
