// treefold._native: the Python border of the native core. It checks what it is given and lets go of the GIL.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <numpy/ndarrayobject.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "dispatch.hpp"
#include "exchange_module.hpp"
#include "memory.hpp"
#include "pipeline_module.hpp"
#include "pool.hpp"

namespace nb = nanobind;

namespace {

using treefold::Item;

using treefold::element_bytes;

[[noreturn]] void refuse(const std::string& sentence) { throw nb::value_error(sentence.c_str()); }

// Who is refused: "source 2 of item 0". Put into words only when somebody is: a batch has thousands of arrays.
struct Place {
  const char* role;
  std::size_t index, item;
  std::string words() const {
    return std::string(role) + " " + std::to_string(index) + " of item " + std::to_string(item);
  }
};

// The memory of a NumPy array that loops can run over: row-major, aligned, in native byte order.
char* memory_of(nb::handle object, npy_intp itemsize, npy_intp length, const Place& place) {
  if (!PyArray_Check(object.ptr())) refuse("fold got " + place.words() + " that is no NumPy array.");
  auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
  if (!PyArray_ISCARRAY_RO(array)) {
    refuse("fold got " + place.words() + " that is not row-major, aligned and in native byte order.");
  }
  if (PyArray_ITEMSIZE(array) != itemsize) {
    refuse("fold got " + place.words() + " with elements of " + std::to_string(PyArray_ITEMSIZE(array)) + " bytes where " +
           std::to_string(itemsize) + " are meant.");
  }
  if (PyArray_SIZE(array) != length) {
    refuse("fold got " + place.words() + " with " + std::to_string(PyArray_SIZE(array)) + " elements where source 0 has " +
           std::to_string(length) + ".");
  }
  return PyArray_BYTES(array);
}

bool is_integer(int dtype) {
  return dtype >= static_cast<int>(treefold::Dtype::int8) && dtype <= static_cast<int>(treefold::Dtype::uint64);
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
    for (nb::handle entry : entries) add(entry, request);
  }
  const std::vector<Item>& items() const { return items_; }

 private:
  void add(nb::handle entry, const Request& request) {
    int dtype = -1;
    if (!nb::isinstance<nb::tuple>(entry) || nb::len(entry) != 3 || !nb::try_cast<int>(entry[0], dtype)) {
      refuse("fold takes items (dtype, sources, targets), dtype being a number.");
    }
    if (dtype < 0 || dtype >= treefold::dtype_count) refuse("fold knows no dtype " + std::to_string(dtype) + ".");
    Item item{};
    item.loop = loop_for(dtype, request);
    if (item.loop == nullptr) refuse("fold has no meaning for this op and dtype " + std::to_string(dtype) + ".");
    item.source_bytes = element_bytes[dtype];
    item.target_bytes = target_bytes(dtype, request.op);
    add_memory(item, entry[1], entry[2]);
    item.arithmetic.count = nb::len(nb::handle(entry[1]));
    if (request.weights != nullptr) {
      if (request.weights->size() != item.arithmetic.count) {
        refuse("fold got " + std::to_string(request.weights->size()) + " weights for " +
               std::to_string(item.arithmetic.count) + " sources.");
      }
      item.arithmetic.weights = request.weights->data();
      item.arithmetic.weight_sum = request.weight_sum;
    }
    items_.push_back(item);
  }

  void add_memory(Item& item, const nb::object& sources, const nb::object& targets) {
    const std::size_t source_count = nb::len(sources), target_count = nb::len(targets), number = items_.size();
    if (source_count == 0) refuse("fold got item " + std::to_string(number) + " without a source.");
    const nb::object first = sources[0];
    const bool is_array = PyArray_Check(first.ptr());
    const npy_intp length = is_array ? PyArray_SIZE(reinterpret_cast<PyArrayObject*>(first.ptr())) : 0;
    auto pointers = std::make_unique<void*[]>(source_count + target_count);
    for (std::size_t i = 0; i < source_count; ++i) {
      const auto itemsize = static_cast<npy_intp>(item.source_bytes);
      pointers[i] = memory_of(nb::object(sources[i]), itemsize, length, {"source", i, number});
    }
    for (std::size_t i = 0; i < target_count; ++i) {
      const nb::object target = targets[i];
      const Place place{"target", i, number};
      void* const start = memory_of(target, static_cast<npy_intp>(item.target_bytes), length, place);
      if (!PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(target.ptr()))) {
        refuse("fold got " + place.words() + " that is read-only.");
      }
      pointers[source_count + i] = start;
      for (std::size_t s = 0; s < source_count; ++s) item.in_place |= pointers[s] == start;
    }
    item.length = static_cast<std::size_t>(length);
    item.sources = pointers.get();
    item.targets = pointers.get() + source_count;
    item.target_count = target_count;
    pointers_.push_back(std::move(pointers));
  }

  static treefold::Loop loop_for(int dtype, const Request& request) {
    if (request.op < 0) return request.level->traffic;
    if (request.weights != nullptr) return request.level->weighted_mean[dtype];
    return request.level->loops[dtype][request.op][request.accumulate];
  }

  // The MEAN of integers is float64 for 32 and 64 bits, else float32.
  static std::size_t target_bytes(int dtype, int op) {
    if (op == static_cast<int>(treefold::Op::mean) && is_integer(dtype)) return element_bytes[dtype] < 4 ? 4 : 8;
    return element_bytes[dtype];
  }

  std::vector<Item> items_;
  std::vector<std::unique_ptr<void*[]>> pointers_;
};

const treefold::Level& level_at(int index) {
  const auto& levels = treefold::usable_levels();
  if (index < 0 || index >= static_cast<int>(levels.size())) {
    refuse("There is no vector level " + std::to_string(index) + " on this machine.");
  }
  return *levels[static_cast<std::size_t>(index)];
}

// Takes the GIL again. While the interpreter ends, Python before 3.14 unwinds a thread that asks for it; that would
// meet frames that must not be unwound, and end the process with a crash. Such a thread waits for the end here.
void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

void run(const Batch& batch, const treefold::Manner& manner = {}) {
  PyThreadState* state = PyEval_SaveThread();
  const auto interrupted = [&state] {
    take_gil(state);
    const bool is_raised = PyErr_CheckSignals() != 0;
    state = PyEval_SaveThread();
    return is_raised;
  };
  bool was_interrupted = false;
  std::exception_ptr error;
  try {
    was_interrupted = treefold::fold_batch(batch.items(), interrupted, manner);
  } catch (const std::exception&) {  // no memory for the tasks
    error = std::current_exception();
  }
  take_gil(state);
  if (error) std::rethrow_exception(error);
  if (was_interrupted) throw nb::python_error();
}

void fold(const nb::list& items, int op, int accumulate, int level, nb::object weights, double weight_sum) {
  if (op < 0 || op >= treefold::op_count) refuse("fold knows no op " + std::to_string(op) + ".");
  if (accumulate < 0 || accumulate >= treefold::accumulation_count) refuse("fold knows no accumulation " + std::to_string(accumulate) + ".");
  if (!weights.is_none() && op != static_cast<int>(treefold::Op::mean)) refuse("fold takes weights with MEAN only.");
  std::vector<double> numbers;
  if (!weights.is_none()) {
    for (nb::handle weight : weights) numbers.push_back(nb::cast<double>(weight));
  }
  run(Batch(items, {op, accumulate, &level_at(level), weights.is_none() ? nullptr : &numbers, weight_sum}));
}

// Whether arrays, given leaf by leaf, may be folded into themselves: row-major and writable, no two on one memory.
bool may_fold_in_place(const nb::list& leaves) {
  std::vector<std::pair<const char*, const char*>> extents;
  for (nb::handle arrays : leaves) {
    for (nb::handle object : nb::borrow<nb::sequence>(arrays)) {
      if (!PyArray_Check(object.ptr())) return false;
      auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
      if (!PyArray_ISCARRAY(array)) return false;
      const char* const start = PyArray_BYTES(array);
      if (PyArray_NBYTES(array) > 0) extents.emplace_back(start, start + PyArray_NBYTES(array));
    }
  }
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i - 1].second > extents[i].first) return false;
  }
  return true;
}

// Whether these are arrays of one shape and dtype.
bool agree(const nb::tuple& objects) {
  auto* const first = reinterpret_cast<PyArrayObject*>(objects[0].ptr());
  for (nb::handle object : objects) {
    if (!PyArray_Check(object.ptr())) return false;
    auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (PyArray_NDIM(array) != PyArray_NDIM(first)) return false;
    if (!PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(first), PyArray_NDIM(first))) return false;
    if (PyArray_DESCR(array) != PyArray_DESCR(first) && !PyArray_EquivTypes(PyArray_DESCR(array), PyArray_DESCR(first))) {
      return false;
    }
  }
  return true;
}

// More than any memory, and far from where sums of sizes would wrap.
constexpr std::size_t most_task_bytes = std::size_t{1} << 40;

// Items are byte arrays, of dtype uint8.
void traffic(const nb::list& items, int level, std::size_t task_bytes, std::optional<bool> stream) {
  using Stream = treefold::Manner::Stream;
  const Stream asked = !stream ? Stream::large : *stream ? Stream::always : Stream::never;
  run(Batch(items, {-1, 0, &level_at(level), nullptr, 0}), {std::min(task_bytes, most_task_bytes), asked});
}

nb::tuple level_names() {
  nb::list names;
  for (const treefold::Level* level : treefold::usable_levels()) names.append(nb::str(level->name));
  return nb::tuple(names);
}

// The names of what Python passes as numbers, each at its number.
template <std::size_t count>
nb::tuple tuple_of(const char* const (&names)[count]) {
  nb::list made;
  for (const char* name : names) made.append(nb::str(name));
  return nb::tuple(made);
}

[[noreturn]] void no_memory(const std::string& sentence) {
  PyErr_SetString(PyExc_MemoryError, sentence.c_str());
  throw nb::python_error();
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
    if (lengths.back() < 0) refuse("A shape has no negative lengths.");
    const auto count = static_cast<std::size_t>(lengths.back());
    if (count != 0 && nbytes > PTRDIFF_MAX / count) {
      no_memory("A result of this shape would have more bytes than there are addresses.");
    }
    nbytes *= count;
  }
  void* const start = treefold::HostMemory::of_this_process().take(nbytes);
  if (start == nullptr) {
    no_memory("There is no memory for a result of " + std::to_string(nbytes) + " bytes. Nothing was written.");
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
  // Made now: a child of fork() would wait for ever for what another thread was just making.
  treefold::HostMemory::of_this_process();
  treefold::Pool::of_this_process();
  treefold::usable_levels();
  module.doc() = "The native core of treefold: loops over host memory.";
  module.attr("DTYPES") = tuple_of(treefold::dtype_names);
  module.attr("OPS") = tuple_of(treefold::op_names);
  module.attr("ACCUMULATIONS") = tuple_of(treefold::accumulation_names);
  module.def("fold", &fold, nb::arg("items"), nb::arg("op"), nb::arg("accumulate"), nb::arg("level"),
             nb::arg("weights").none() = nb::none(), nb::arg("weight_sum") = 0.0,
             "Fold a batch of (dtype, sources, targets): row-major NumPy arrays of one length each, in replica order.\n\n"
             "A target is exactly one source's memory or disjoint from all of them; the caller has checked that.");
  module.def("traffic", &traffic, nb::arg("items"), nb::arg("level"), nb::arg("task_bytes") = 0,
             nb::arg("stream").none() = nb::none(),
             "Read and write as fold does, with one exclusive or per byte: the limit that folds are measured against.\n\n"
             "task_bytes: what one thread reads and writes at a time, 0: as fold does. stream: write around the caches,\n"
             "None: as fold does.");
  module.def("may_fold_in_place", &may_fold_in_place, nb::arg("leaves"),
             "Tell whether arrays, given leaf by leaf, are row-major, writable, and no two of them on one memory.");
  module.def("agree", &agree, nb::arg("arrays"), "Tell whether these, at least one, are arrays of one shape and dtype.");
  module.def("level_names", &level_names, "Return the vector levels of this machine, widest first.");
  module.def("set_num_threads", [](std::size_t count) {
    if (count == 0) refuse("The number of threads is 0, but one works at least.");
    treefold::Pool::set_num_threads(count);
  });
  module.def("num_threads", &treefold::Pool::num_threads);
  module.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"),
             "Return an uninitialised array whose memory returns to the cache when its last owner is gone.");
  module.def("memory_info", &memory_info, "Return the state of the cache of result memory.");
  module.def("set_memory_limit", [](std::size_t n) { treefold::HostMemory::of_this_process().set_limit(n); });
  define_pipeline(module);
  define_exchange(module);
  module.def("empty_cache", [] { treefold::HostMemory::of_this_process().clear(); });
}
