// treefold._native: the Python border of the native core. It checks what it is given and lets go of the GIL.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <numpy/ndarrayobject.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batch.hpp"
#include "dispatch.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace nb = nanobind;

namespace {

using treefold::Item;

constexpr std::size_t element_bytes[treefold::dtype_count] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 8, 16, 1};

[[noreturn]] void refuse(const std::string& sentence) { throw nb::value_error(sentence.c_str()); }

// The memory of a NumPy array that loops can run over: row-major, aligned, in native byte order.
char* memory_of(nb::handle object, const char* role, npy_intp itemsize, npy_intp length, bool is_target) {
  if (!PyArray_Check(object.ptr())) refuse(std::string("A ") + role + " is no NumPy array.");
  auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
  if (!PyArray_ISCARRAY_RO(array)) refuse(std::string("A ") + role + " is not row-major, aligned and in native byte order.");
  if (PyArray_ITEMSIZE(array) != itemsize) {
    refuse(std::string("A ") + role + " has elements of " + std::to_string(PyArray_ITEMSIZE(array)) + " bytes where " +
           std::to_string(itemsize) + " are meant.");
  }
  if (PyArray_SIZE(array) != length) {
    refuse(std::string("A ") + role + " has " + std::to_string(PyArray_SIZE(array)) + " elements where source 0 has " +
           std::to_string(length) + ".");
  }
  if (is_target && !PyArray_ISWRITEABLE(array)) refuse("A target is read-only.");
  return PyArray_BYTES(array);
}

struct Request {
  int op, accumulate;
  const treefold::Level* level;
  const std::vector<double>* weights;
  double weight_sum;
};

// The items of a batch with the arrays of pointers that they refer to.
class Batch {
 public:
  Batch(const nb::list& entries, const Request& request) {
    items_.reserve(entries.size());
    for (nb::handle entry : entries) add(nb::cast<nb::tuple>(entry), request);
  }
  const std::vector<Item>& items() const { return items_; }

 private:
  void add(const nb::tuple& entry, const Request& request) {
    if (entry.size() != 3) refuse("An item is (dtype, sources, targets).");
    const int dtype = nb::cast<int>(entry[0]);
    if (dtype < 0 || dtype >= treefold::dtype_count) refuse("There is no dtype of this number.");
    const nb::sequence sources = nb::borrow<nb::sequence>(entry[1]), targets = nb::borrow<nb::sequence>(entry[2]);
    const std::size_t source_count = nb::len(sources), target_count = nb::len(targets);
    if (source_count == 0) refuse("An item needs at least one source.");
    Item item{};
    item.loop = loop_for(dtype, request);
    if (item.loop == nullptr) refuse("This op has no meaning for this dtype.");
    item.source_bytes = element_bytes[dtype];
    item.target_bytes = target_bytes(dtype, request.op);
    const nb::object first = sources[0];
    if (!PyArray_Check(first.ptr())) refuse("A source is no NumPy array.");
    const npy_intp length = PyArray_SIZE(reinterpret_cast<PyArrayObject*>(first.ptr()));
    item.length = static_cast<std::size_t>(length);
    auto pointers = std::make_unique<void*[]>(source_count + target_count);
    for (std::size_t i = 0; i < source_count; ++i) {
      const nb::object source = sources[i];
      pointers[i] = memory_of(source, "source", static_cast<npy_intp>(item.source_bytes), length, false);
    }
    for (std::size_t i = 0; i < target_count; ++i) {
      const nb::object target = targets[i];
      void* const start = memory_of(target, "target", static_cast<npy_intp>(item.target_bytes), length, true);
      pointers[source_count + i] = start;
      for (std::size_t s = 0; s < source_count; ++s) item.in_place |= pointers[s] == start;
    }
    item.sources = pointers.get();
    item.targets = pointers.get() + source_count;
    item.target_count = target_count;
    item.arithmetic.count = source_count;
    if (request.weights != nullptr) {
      if (request.weights->size() != source_count) refuse("There must be one weight for each source.");
      item.arithmetic.weights = request.weights->data();
      item.arithmetic.weight_sum = request.weight_sum;
    }
    pointers_.push_back(std::move(pointers));
    items_.push_back(item);
  }

  static treefold::Loop loop_for(int dtype, const Request& request) {
    if (request.op < 0) return request.level->traffic;
    if (request.weights != nullptr) return request.level->weighted_mean[dtype];
    return request.level->loops[dtype][request.op][request.accumulate];
  }

  // The MEAN of integers is float64 for 32 and 64 bits, else float32.
  static std::size_t target_bytes(int dtype, int op) {
    const bool is_integer = dtype >= static_cast<int>(treefold::Dtype::int8) && dtype <= static_cast<int>(treefold::Dtype::uint64);
    if (op == static_cast<int>(treefold::Op::mean) && is_integer) return element_bytes[dtype] < 4 ? 4 : 8;
    return element_bytes[dtype];
  }

  std::vector<Item> items_;
  std::vector<std::unique_ptr<void*[]>> pointers_;
};

const treefold::Level& level_at(int index) {
  const auto& levels = treefold::usable_levels();
  if (index < 0 || index >= static_cast<int>(levels.size())) refuse("There is no vector level of this number.");
  return *levels[static_cast<std::size_t>(index)];
}

void run(const Batch& batch) {
  bool was_interrupted = false;
  {
    const nb::gil_scoped_release released;
    was_interrupted = treefold::fold_batch(batch.items(), [] {
      const nb::gil_scoped_acquire held;
      return PyErr_CheckSignals() != 0;
    });
  }
  if (was_interrupted) throw nb::python_error();
}

void fold(const nb::list& items, int op, int accumulate, int level, nb::object weights, double weight_sum) {
  if (op < 0 || op >= treefold::op_count || accumulate < 0 || accumulate > 1) refuse("There is no op of this number.");
  std::vector<double> numbers;
  if (!weights.is_none()) {
    for (nb::handle weight : weights) numbers.push_back(nb::cast<double>(weight));
  }
  run(Batch(items, {op, accumulate, &level_at(level), weights.is_none() ? nullptr : &numbers, weight_sum}));
}

// Items are byte arrays, of dtype uint8.
void traffic(const nb::list& items, int level) { run(Batch(items, {-1, 0, &level_at(level), nullptr, 0})); }

nb::tuple level_names() {
  nb::list names;
  for (const treefold::Level* level : treefold::usable_levels()) names.append(nb::str(level->name));
  return nb::tuple(names);
}

struct Taken {
  void* start;
  std::size_t nbytes;
};

void give_back(PyObject* capsule) {
  const std::unique_ptr<Taken> taken(static_cast<Taken*>(PyCapsule_GetPointer(capsule, nullptr)));
  treefold::HostMemory::of_this_process().give_back(taken->start, taken->nbytes);
}

// An uninitialised row-major array whose memory returns to the cache when its last owner is gone.
nb::object empty(const nb::tuple& shape, nb::handle dtype) {
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(dtype.ptr(), &descr) == NPY_FAIL) throw nb::python_error();
  const nb::object held = nb::steal(reinterpret_cast<PyObject*>(descr));
  if (PyDataType_REFCHK(descr)) refuse("An array of objects has no memory of its own.");
  std::vector<npy_intp> lengths;
  std::size_t nbytes = static_cast<std::size_t>(PyDataType_ELSIZE(descr));
  for (nb::handle length : shape) {
    lengths.push_back(nb::cast<npy_intp>(length));
    const auto count = static_cast<std::size_t>(lengths.back());
    if (lengths.back() < 0 || (count != 0 && nbytes > PTRDIFF_MAX / count)) {
      refuse("The shape has a negative length or too many elements.");
    }
    nbytes *= count;
  }
  void* const start = treefold::HostMemory::of_this_process().take(nbytes);
  if (start == nullptr) {
    PyErr_Format(PyExc_MemoryError, "There is no memory for a result of %zu bytes. Nothing was written.", nbytes);
    throw nb::python_error();
  }
  const nb::object owner = nb::steal(PyCapsule_New(new Taken{start, nbytes}, nullptr, &give_back));
  Py_INCREF(descr);  // the array takes this one
  PyObject* const array = PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(lengths.size()), lengths.data(),
                                               nullptr, start, NPY_ARRAY_CARRAY, nullptr);
  if (array == nullptr) throw nb::python_error();
  const nb::object result = nb::steal(array);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), nb::object(owner).release().ptr()) != 0) {
    throw nb::python_error();
  }
  return result;
}

nb::dict memory_info() {
  const auto info = treefold::HostMemory::of_this_process().info();
  nb::dict result;
  result["used_bytes"] = info.used_bytes;
  result["cached_bytes"] = info.cached_bytes;
  result["limit_bytes"] = info.limit_bytes;
  result["hits"] = info.hits;
  result["misses"] = info.misses;
  return result;
}

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace

NB_MODULE(_native, module) {
  if (import_numpy() != 0) throw nb::python_error();
  module.doc() = "The native core of treefold: loops over host memory.";
  module.def("fold", &fold, nb::arg("items"), nb::arg("op"), nb::arg("accumulate"), nb::arg("level"),
             nb::arg("weights").none() = nb::none(), nb::arg("weight_sum") = 0.0,
             "Fold a batch of (dtype, sources, targets): row-major NumPy arrays of one length each, in replica order.\n\n"
             "A target is exactly one source's memory or disjoint from all of them; the caller has checked that.");
  module.def("traffic", &traffic, nb::arg("items"), nb::arg("level"),
             "Read and write as fold does, with one exclusive or per byte: the limit that folds are measured against.");
  module.def("level_names", &level_names, "Return the vector levels of this machine, widest first.");
  module.def("set_num_threads", [](std::size_t n) { treefold::Pool::of_this_process().set_num_threads(n); });
  module.def("num_threads", [] { return treefold::Pool::of_this_process().num_threads(); });
  module.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"),
             "Return an uninitialised array whose memory returns to the cache when its last owner is gone.");
  module.def("memory_info", &memory_info, "Return the state of the cache of result memory.");
  module.def("set_memory_limit", [](std::size_t n) { treefold::HostMemory::of_this_process().set_limit(n); });
  module.def("empty_cache", [] { treefold::HostMemory::of_this_process().clear(); });
}
