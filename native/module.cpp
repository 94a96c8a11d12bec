// treefold._native: the Python border of the native core. It checks what it is given and lets go of the GIL.
#include <nanobind/nanobind.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fold.hpp"

namespace nb = nanobind;

namespace {

enum class Access { read, write };

[[noreturn]] void refuse(const std::string& sentence) { throw nb::value_error(("fold_sum got " + sentence).c_str()); }

// A 1-D contiguous float32 array, held through the buffer protocol for as long as this object lives.
class Float32Array {
 public:
  Float32Array(nb::handle array, const std::string& name, Access access) {
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      refuse(name + " without a buffer, but takes only arrays in host memory.");
    }
    try {
      check(name, access);
    } catch (...) {
      PyBuffer_Release(&view_);  // a constructor that throws has no destructor
      throw;
    }
  }
  ~Float32Array() { PyBuffer_Release(&view_); }
  Float32Array(const Float32Array&) = delete;
  Float32Array& operator=(const Float32Array&) = delete;

  float* data() const { return static_cast<float*>(view_.buf); }
  std::size_t length() const { return static_cast<std::size_t>(view_.shape[0]); }

 private:
  void check(const std::string& name, Access access) const {
    const std::string format = view_.format ? view_.format : "B";
    // '=f' is native float32 too: NumPy says so of an array that is not aligned.
    if (format != "f" && format != "=f") {
      refuse(name + " of format '" + format + "', but takes only float32, which is 'f'.");
    }
    if (view_.ndim != 1) {
      refuse(name + " with " + std::to_string(view_.ndim) + " axes, but takes only arrays with one.");
    }
    if (view_.shape[0] > 1 && view_.strides[0] != view_.itemsize) {
      refuse(name + " with a stride of " + std::to_string(view_.strides[0]) +
             " bytes, but takes only contiguous arrays.");
    }
    if (reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(float) != 0) {
      refuse(name + " at an address that is no multiple of 4, but takes only aligned arrays.");
    }
    if (access == Access::write && view_.readonly) {
      refuse(name + " read-only, but must write into every target.");
    }
  }

  Py_buffer view_{};
};

using Arrays = std::vector<std::unique_ptr<Float32Array>>;

Arrays hold(const nb::list& list, const std::string& role, Access access) {
  if (list.size() == 0) refuse("no " + role + "s, but needs at least one.");
  Arrays arrays;
  arrays.reserve(list.size());
  for (nb::handle array : list) {
    const std::string name = role + " " + std::to_string(arrays.size());
    arrays.push_back(std::make_unique<Float32Array>(array, name, access));
  }
  return arrays;
}

template <class Pointer>
std::vector<Pointer> pointers(const Arrays& arrays, const std::string& role, std::size_t length) {
  std::vector<Pointer> result;
  result.reserve(arrays.size());
  for (const auto& array : arrays) {
    if (array->length() != length) {
      refuse(role + " " + std::to_string(result.size()) + " of length " + std::to_string(array->length()) +
             " where source 0 has " + std::to_string(length) + ", but all must be equally long.");
    }
    result.push_back(array->data());
  }
  return result;
}

void fold_sum(const nb::list& sources, const nb::list& targets, double divisor) {
  if (!(std::isfinite(divisor) && divisor > 0)) refuse("a divisor that is not a positive finite number.");
  const Arrays inputs = hold(sources, "source", Access::read);
  const Arrays outputs = hold(targets, "target", Access::write);
  const std::size_t length = inputs.front()->length();
  const auto from = pointers<const float*>(inputs, "source", length);
  const auto to = pointers<float*>(outputs, "target", length);
  const nb::gil_scoped_release released;
  treefold::fold_sum<double, float>(from, to, length, divisor);
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The native core of treefold: loops over host memory.";
  module.def("fold_sum", &fold_sum, nb::arg("sources"), nb::arg("targets"), nb::arg("divisor") = 1.0,
             "Sum float32 arrays in replica order in float64, divide, round once, and write into every target.\n\n"
             "All are 1-D, contiguous and equally long. A target is exactly one source's memory or disjoint from\n"
             "all of them; the caller has checked that. No division is made for a divisor of 1.");
}
