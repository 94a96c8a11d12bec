#include "exchange_module.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#define NO_IMPORT_ARRAY
#include <nanobind/ndarray.h>
#include <numpy/ndarrayobject.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace nb = nanobind;

namespace {

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
  nb::dlpack::dltensor tensor;
};
struct ExchangeTable {
  Version version;
  ExchangeTable* previous;
  void* allocate;
  void* managed_from_object;
  int (*object_from_managed)(ManagedTensor*, void**);
  int (*tensor_of_object)(void*, nb::dlpack::dltensor*);
  void* current_stream;
};
constexpr std::uint32_t known_major = 1;
constexpr Version spoken{1, 2};
static_assert(sizeof(npy_intp) == sizeof(std::int64_t), "NumPy's shapes are DLPack's on machines of 64 bits only.");

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

// A writable NumPy array on a tensor's memory, which owns the tensor; none if it is not row-major in host memory.
nb::object view_of(nb::handle object, const ExchangeTable& table, PyArray_Descr* descr) {
  nb::dlpack::dltensor tensor;
  if (table.tensor_of_object(object.ptr(), &tensor) != 0) {
    PyErr_Clear();  // it has no memory of its own
    return {};
  }
  const auto itemsize = static_cast<std::size_t>(PyDataType_ELSIZE(descr));
  if (tensor.device.device_type != nb::device::cpu::value || tensor.dtype.lanes != 1 ||
      tensor.dtype.bits != 8 * itemsize || tensor.ndim > NPY_MAXDIMS || !is_row_major(tensor)) {
    return {};
  }
  npy_intp nothing = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) nothing *= tensor.shape[axis];
  if (tensor.data == nullptr && nothing != 0) return {};
  static char empty_memory[16];  // NumPy would take memory of its own for a null pointer
  char* const start = tensor.data == nullptr ? empty_memory : static_cast<char*>(tensor.data) + tensor.byte_offset;
  Py_INCREF(descr);  // the array takes this one
  const auto* const shape = reinterpret_cast<const npy_intp*>(tensor.shape);
  PyObject* const array =
      PyArray_NewFromDescr(&PyArray_Type, descr, tensor.ndim, shape, nullptr, start, NPY_ARRAY_CARRAY, nullptr);
  if (array == nullptr) throw nb::python_error();
  nb::object result = nb::steal(array);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), object.inc_ref().ptr()) != 0) {
    throw nb::python_error();
  }
  return result;
}

nb::object views(const nb::capsule& exchange, const nb::tuple& objects, nb::handle dtype) {
  const ExchangeTable& table = table_of(exchange);
  if (!PyArray_DescrCheck(dtype.ptr())) throw nb::type_error("The dtype is no numpy.dtype.");
  const nb::object result = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(objects.size())));
  Py_ssize_t index = 0;
  for (nb::handle object : objects) {
    nb::object view = view_of(object, table, reinterpret_cast<PyArray_Descr*>(dtype.ptr()));
    if (!view.is_valid()) return nb::none();
    PyTuple_SET_ITEM(result.ptr(), index++, view.release().ptr());
  }
  return result;
}

// Where tensors of one shape, dtype and device lie: (device type, device, shape, addresses), or none.
nb::object addresses(const nb::capsule& exchange, const nb::tuple& objects) {
  const ExchangeTable& table = table_of(exchange);
  nb::dlpack::dltensor first;
  const nb::object places = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(objects.size())));
  Py_ssize_t index = 0;
  for (nb::handle object : objects) {
    nb::dlpack::dltensor tensor;
    if (table.tensor_of_object(object.ptr(), &tensor) != 0) {
      PyErr_Clear();
      return nb::none();
    }
    if (index == 0) first = tensor;
    const bool agrees = tensor.device.device_type == first.device.device_type && tensor.dtype == first.dtype &&
                        tensor.device.device_id == first.device.device_id && tensor.ndim == first.ndim &&
                        std::equal(tensor.shape, tensor.shape + tensor.ndim, first.shape);
    if (!agrees || !is_row_major(tensor)) return nb::none();
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
    PyTuple_SET_ITEM(places.ptr(), index++, nb::int_(address).release().ptr());
  }
  nb::list shape;
  for (int axis = 0; axis < first.ndim; ++axis) shape.append(first.shape[axis]);
  return nb::make_tuple(first.device.device_type, first.device.device_id, nb::tuple(shape), places);
}

// What a tensor made on an array's memory holds on to.
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
  module.def("views", &views, nb::arg("exchange"), nb::arg("tensors"), nb::arg("dtype"),
             "Return writable NumPy arrays on the memory of row-major tensors on the CPU, None if one is something else.\n\n"
             "``exchange``: the capsule ``__dlpack_c_exchange_api__`` of the tensors' type; all of them are of that type.");
  module.def("addresses", &addresses, nb::arg("exchange"), nb::arg("tensors"),
             "Return DLPack's device type and index, the shape and the addresses of row-major tensors, at least one, that\n"
             "agree in all but the last; None if they do not.");
  module.def("tensors", &tensors, nb::arg("exchange"), nb::arg("arrays"), nb::arg("code"),
             "Return tensors on the memory of arrays, copied unless row-major and writable.\n\n"
             "``code``: what DLPack calls their kind of dtype.");
}
