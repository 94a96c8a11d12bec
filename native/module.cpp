// treefold._native: the Python border of the native core. It checks its arguments and releases the GIL.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <numpy/ndarrayobject.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "border.hpp"
#include "dispatch.hpp"
#include "exact.hpp"
#include "floating_mode.hpp"
#include "graph_module.hpp"
#include "group_module.hpp"
#include "memory.hpp"
#include "partial_module.hpp"
#include "pipeline_module.hpp"
#include "pool.hpp"
#include "results_module.hpp"
#include "rows_module.hpp"
#include "superaccumulator.hpp"

namespace nb = nanobind;

namespace {

using treefold::Item;

// An array of a batch, such as "source 2 of item 0". It is put into words only for an error: batches have thousands.
struct ArrayName {
  const char* role;
  std::size_t index, item;
  std::string words() const { return std::string(role) + " " + std::to_string(index) + " of item " + std::to_string(item); }
};

// Returns the memory of a NumPy array that loops can run over: row-major, aligned, in native byte order.
char* memory_of(nb::handle object, npy_intp itemsize, npy_intp length, const ArrayName& name) {
  if (!PyArray_Check(object.ptr())) refuse("fold got " + name.words() + " that is no NumPy array.");
  auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
  if (!PyArray_ISCARRAY_RO(array)) {
    refuse("fold got " + name.words() + " that is not row-major, aligned and in native byte order.");
  }
  if (PyArray_ITEMSIZE(array) != itemsize) {
    refuse("fold got " + name.words() + " with elements of " + std::to_string(PyArray_ITEMSIZE(array)) + " bytes where " +
           std::to_string(itemsize) + " are meant.");
  }
  if (PyArray_SIZE(array) != length) {
    refuse("fold got " + name.words() + " with " + std::to_string(PyArray_SIZE(array)) + " elements where source 0 has " +
           std::to_string(length) + ".");
  }
  return PyArray_BYTES(array);
}

// Bytes that are added up with the GIL held, because releasing it takes longer.
constexpr std::size_t most_held_bytes = std::size_t{1} << 16;

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
    Item item = item_of(dtype, request);
    add_memory(item, entry[1], entry[2]);
    item.arithmetic.count = nb::len(nb::handle(entry[1]));
    if (request.weights != nullptr && request.weights->count() != item.arithmetic.count) {
      refuse("fold got " + std::to_string(request.weights->count()) + " weights for " + std::to_string(item.arithmetic.count) +
             " sources.");
    }
    item.arithmetic.weights = request.weights;
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
      const ArrayName name{"target", i, number};
      void* const start = memory_of(target, static_cast<npy_intp>(item.target_bytes), length, name);
      if (!PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(target.ptr()))) {
        refuse("fold got " + name.words() + " that is read-only.");
      }
      pointers[source_count + i] = start;
      // Results in place are not written around the caches, which hold their memory: it was just read.
      for (std::size_t s = 0; s < source_count; ++s) item.in_place |= pointers[s] == start;
    }
    item.length = static_cast<std::size_t>(length);
    item.sources = pointers.get();
    item.targets = pointers.get() + source_count;
    item.target_count = target_count;
    pointers_.push_back(std::move(pointers));
  }

  std::vector<Item> items_;
  std::vector<std::unique_ptr<void*[]>> pointers_;
};

void fold(const nb::list& items, int op, int accumulate, int level, const std::optional<nb::bytes>& weights,
          std::size_t words_each) {
  Request request = fold_request(op, accumulate, level);
  if (!weights) return run(Batch(items, request).items());
  if (op != static_cast<int>(treefold::Op::mean)) refuse("fold takes weights with MEAN only.");
  const treefold::Weights numbers(words_of(*weights, words_each), words_each);
  if (numbers.has_zero()) refuse("A weight is 0; its contribution is to be left out.");
  request.weights = &numbers;
  run(Batch(items, request).items());
}

// Adds up arrays, or the products of pairs of them.
nb::tuple exact_sum(int dtype, const nb::list& terms, bool is_product, int level) {
  const treefold::Level& loops = level_at(level);
  if (dtype < 0 || dtype >= treefold::dtype_count || loops.whole_sums[dtype] == nullptr) {
    refuse("exact_sum knows no dtype " + std::to_string(dtype) + ".");
  }
  const std::size_t itemsize = treefold::element_bytes[dtype];
  std::vector<treefold::SumSpan> spans;
  std::size_t nbytes = 0;
  for (nb::handle term : terms) {
    if (!nb::isinstance<nb::tuple>(term) || nb::len(term) != 1u + is_product) refuse("exact_sum takes tuples of arrays.");
    const void* memory[2]{};
    npy_intp length = 0;
    for (std::size_t i = 0; i < nb::len(term); ++i) {
      const nb::object array = term[i];
      if (i == 0 && PyArray_Check(array.ptr())) length = PyArray_SIZE(reinterpret_cast<PyArrayObject*>(array.ptr()));
      memory[i] = memory_of(array, static_cast<npy_intp>(itemsize), length, {"source", i, spans.size()});
    }
    spans.push_back({memory[0], memory[1], 0, static_cast<std::size_t>(length)});
    nbytes += static_cast<std::size_t>(length) * itemsize;
  }
  treefold::Superaccumulator total;
  const treefold::WholeSum loop = (is_product ? loops.products : loops.whole_sums)[dtype];
  const auto add = [&](const std::function<bool()>& interrupted) {
    return treefold::add_up(spans, loop, itemsize, total, interrupted);
  };
  if (nbytes <= most_held_bytes) add([] { return false; });
  else without_gil(add);
  const auto words = total.words();
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(words.data()), sizeof words), total.has_nan, total.has_plus,
                        total.has_minus);
}

void set_certificate(int number) {
  if (number < 0 || number >= treefold::certificate_count) {
    refuse("There is no certificate " + std::to_string(number) + ".");
  }
  treefold::asked_certificate = static_cast<treefold::Certificate>(number);
}

// More than any memory, and far from where sums of sizes would wrap.
constexpr std::size_t most_task_bytes = std::size_t{1} << 40;

// Items are byte arrays, of dtype uint8.
void traffic(const nb::list& items, int level, std::size_t task_bytes, std::optional<bool> stream) {
  using Stream = treefold::Manner::Stream;
  const Stream asked = !stream ? Stream::large : *stream ? Stream::always : Stream::never;
  run(Batch(items, {-1, 0, &level_at(level)}).items(), {std::min(task_bytes, most_task_bytes), asked});
}

nb::tuple level_names() {
  nb::list names;
  for (const treefold::Level* level : treefold::usable_levels()) names.append(nb::str(level->name));
  return nb::tuple(names);
}

// Names of the numbers that Python passes, each at the index of its number.
template <std::size_t count>
nb::tuple tuple_of(const char* const (&names)[count]) {
  nb::list made;
  for (const char* name : names) made.append(nb::str(name));
  return nb::tuple(made);
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

nb::object in_plain_arithmetic(const nb::callable& function, const nb::args& args, const nb::kwargs& keywords) {
  const treefold::PlainArithmetic mode;
  return function(*args, **keywords);
}

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace

NB_MODULE(_native, module) {
  if (import_numpy() != 0) throw nb::python_error();
  // Created here, not on first use: a child forked while another thread creates one would wait for it for ever.
  treefold::HostMemory::of_this_process();
  treefold::Pool::of_this_process();
  treefold::usable_levels();
  // Ops objects cache calls, and some live as long as the interpreter. nanobind would report that as a leak.
  nb::set_leak_warnings(false);
  module.doc() = "The native core of treefold: loops over host memory.";
  module.attr("DTYPES") = tuple_of(treefold::dtype_names);
  module.attr("OPS") = tuple_of(treefold::op_names);
  module.attr("ACCUMULATIONS") = tuple_of(treefold::accumulation_names);
  module.attr("CERTIFICATES") = tuple_of(treefold::certificate_names);
  module.def("fold", &fold, nb::arg("items"), nb::arg("op"), nb::arg("accumulate"), nb::arg("level"),
             nb::arg("weights").none() = nb::none(), nb::arg("words_each") = 1,
             "Fold a batch of (dtype, sources, targets): row-major NumPy arrays of one length each, in replica order.\n\n"
             "A target is exactly one source's memory or disjoint from all of them; the caller has checked that.\n"
             "weights: whole numbers above 0, one per source, of words_each 32-bit words each, little-endian.");
  module.def("exact_sum", &exact_sum, nb::arg("dtype"), nb::arg("terms"), nb::arg("is_product"), nb::arg("level"),
             "Return the sum of all elements of row-major arrays, each in a tuple, or of the products of pairs of arrays.\n\n"
             "The first result is a whole number in two's complement, little-endian: the sum in units of 2**-1074, that of\n"
             "products in units of 2**-2148. The others: whether there is a NaN, or an infinity of each sign.");
  module.def("set_certificate", &set_certificate, nb::arg("certificate"),
             "Choose what proves that additions were exact, by its number in CERTIFICATES, for all folds from now on.");
  module.def(
      "certificate", [](int level) { return static_cast<int>(level_at(level).certificate()); }, nb::arg("level"),
      "Return the number of the certificate that a level uses: not the one asked for where its test failed.");
  module.def("in_plain_arithmetic", &in_plain_arithmetic,
             "Call a function, with what follows it, in the floating-point mode of folds; then restore the caller's.");
  module.def("traffic", &traffic, nb::arg("items"), nb::arg("level"), nb::arg("task_bytes") = 0,
             nb::arg("stream").none() = nb::none(),
             "Read and write as fold does, with one exclusive or per byte: the limit that folds are measured against.\n\n"
             "task_bytes: what one thread reads and writes at a time, 0: as fold does. stream: write around the caches,\n"
             "None: as fold does.");
  module.def("level_names", &level_names, "Return the vector levels of this machine, widest first.");
  module.def("set_num_threads", [](std::size_t count) {
    if (count == 0) refuse("The number of threads is 0, but one works at least.");
    treefold::Pool::set_num_threads(count);
  });
  module.def("num_threads", &treefold::Pool::num_threads);
  module.def("memory_info", &memory_info, "Return the state of the cache of result memory.");
  module.def("set_memory_limit", [](std::size_t n) { treefold::HostMemory::of_this_process().set_limit(n); });
  define_partials(module);
  define_pipeline(module);
  define_results(module);
  define_rows(module);
  define_graphs(module);
  define_groups(module);
  module.def("empty_cache", [] { treefold::HostMemory::of_this_process().clear(); });
}
