#include "results_module.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#define NO_IMPORT_ARRAY
#include <numpy/ndarrayobject.h>

#include <cstdint>
#include <memory>
#include <string>

#include "border.hpp"
#include "memory.hpp"

namespace nb = nanobind;

namespace {

[[noreturn]] void no_memory(const std::string& sentence) {
  PyErr_SetString(PyExc_MemoryError, sentence.c_str());
  throw nb::python_error();
}

void give_back(PyObject* capsule) { delete static_cast<ResultMemory*>(PyCapsule_GetPointer(capsule, nullptr)); }

std::size_t bytes_of(const std::vector<Py_ssize_t>& shape, std::size_t itemsize) {
  std::size_t nbytes = itemsize;
  for (const Py_ssize_t length : shape) {
    if (length < 0) refuse("A shape has no negative lengths.");
    const auto count = static_cast<std::size_t>(length);
    if (count != 0 && nbytes > PTRDIFF_MAX / count) {
      no_memory("A result of this shape would have more bytes than there are addresses.");
    }
    nbytes *= count;
  }
  return nbytes;
}

nb::object empty(const nb::tuple& shape, nb::handle dtype) {
  std::vector<Py_ssize_t> lengths;
  for (nb::handle length : shape) lengths.push_back(nb::cast<Py_ssize_t>(length));
  return new_array(lengths, dtype);
}

}  // namespace

ResultMemory::ResultMemory(std::size_t nbytes) : start_(treefold::HostMemory::of_this_process().take(nbytes)), nbytes_(nbytes) {
  if (start_ == nullptr) {
    no_memory("There is no memory for a result of " + std::to_string(nbytes) + " bytes. Nothing was written.");
  }
}

ResultMemory::~ResultMemory() { treefold::HostMemory::of_this_process().give_back(start_, nbytes_); }

nb::object new_array(const std::vector<Py_ssize_t>& shape, nb::handle dtype) {
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(dtype.ptr(), &descr) == NPY_FAIL) throw nb::python_error();
  const nb::object held = nb::steal(reinterpret_cast<PyObject*>(descr));
  if (PyDataType_REFCHK(descr)) refuse("An array of objects has no memory of its own.");
  const std::size_t nbytes = bytes_of(shape, static_cast<std::size_t>(PyDataType_ELSIZE(descr)));
  void* start = nullptr;  // NumPy's own memory
  nb::object owner;
  if (ResultMemory::is_large(nbytes)) {
    auto memory = std::make_unique<ResultMemory>(nbytes);
    start = memory->start();
    owner = nb::steal(PyCapsule_New(memory.get(), nullptr, &give_back));
    if (!owner.is_valid()) throw nb::python_error();
    // From here on the capsule owns it: released earlier, a failure to make the capsule would leak the block.
    memory.release();
  }
  Py_INCREF(descr);  // the array takes this one
  PyObject* const array = PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(shape.size()), shape.data(), nullptr,
                                               start, start == nullptr ? 0 : NPY_ARRAY_CARRAY, nullptr);
  if (array == nullptr) throw nb::python_error();
  nb::object result = nb::steal(array);
  if (start != nullptr && PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner.release().ptr()) != 0) {
    throw nb::python_error();
  }
  return result;
}

void define_results(nb::module_& module) {
  module.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"),
             "Return an uninitialised row-major array. Large memory comes from a cache, and returns there when its last\n"
             "owner is gone.");
}
