#include "partial_module.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#define NO_IMPORT_ARRAY
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <numpy/ndarrayobject.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "border.hpp"
#include "exchange_module.hpp"
#include "partial.hpp"
#include "partial_messages.hpp"
#include "rows_module.hpp"

namespace nb = nanobind;

namespace {

using treefold::Blocks;
using treefold::Pieces;

template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// The arrays of a partial sum, which the caller has checked against each other.
struct Arrays {
  Flat<std::uint8_t> modes;
  Flat<double> sums;
  std::optional<Flat<double>> rests;
  Flat<const std::uint32_t> places;
  Table<std::uint32_t> wholes;
  treefold::Partial partial;

  Arrays(std::size_t length, int least_unit, Flat<std::uint8_t> modes_, Flat<double> sums_, std::optional<Flat<double>> rests_,
         Flat<const std::uint32_t> places_, Table<std::uint32_t> wholes_)
      : modes(std::move(modes_)),
        sums(std::move(sums_)),
        rests(std::move(rests_)),
        places(std::move(places_)),
        wholes(std::move(wholes_)) {
    partial = {length,        wholes.shape(2) - 1, least_unit, modes.data(), sums.data(), rests ? rests->data() : nullptr,
               places.data(), wholes.data()};
    const std::size_t blocks = partial.block_count(), elements = blocks * treefold::partial_length;
    if (modes.shape(0) != blocks || sums.shape(0) != elements || (rests && rests->shape(0) != elements) ||
        places.shape(0) != blocks || wholes.shape(1) != treefold::partial_length) {
      refuse("These arrays are not those of a partial sum of " + std::to_string(length) + " elements.");
    }
  }
};

Blocks blocks_of(const Arrays& arrays, const std::optional<std::vector<std::size_t>>& asked) {
  if (asked) return *asked;
  return treefold::all_blocks(arrays.partial.block_count());
}

Pieces pieces_of(const Arrays& arrays, const Flat<const std::uint64_t>& starts, const Flat<const std::int64_t>& offsets) {
  const std::size_t count = starts.shape(0);
  if (offsets.shape(0) != count + 1 || offsets(count) != static_cast<std::int64_t>(arrays.partial.length)) {
    refuse("The pieces are not as long as the partial sum.");
  }
  return {starts.data(), offsets.data(), count};
}

treefold::Dtype dtype_of(int number) {
  if (number < 0 || number >= treefold::partial_dtypes) refuse("A partial sum has no dtype " + std::to_string(number) + ".");
  return static_cast<treefold::Dtype>(number);
}

treefold::Natural natural_of(const nb::bytes& words) {
  treefold::Natural number = words_of(words, 1);
  treefold::trim(number);
  if (number.empty()) refuse("A weight or divisor is 0.");
  return number;
}

nb::object new_starts(std::size_t count, std::uint64_t*& starts) {
  npy_intp length = static_cast<npy_intp>(count);
  nb::object made = nb::steal(PyArray_SimpleNew(1, &length, NPY_UINT64));
  if (!made.is_valid()) throw nb::python_error();
  starts = static_cast<std::uint64_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.ptr())));
  return made;
}

// Returns where arrays begin, as a NumPy array.
nb::object addresses_of(const nb::list& arrays) {
  std::uint64_t* starts;
  nb::object made = new_starts(arrays.size(), starts);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const nb::object object = arrays[i];
    if (!PyArray_Check(object.ptr()) || !PyArray_ISCARRAY_RO(reinterpret_cast<PyArrayObject*>(object.ptr()))) {
      refuse("Array " + std::to_string(i) + " is not row-major, aligned and in native byte order.");
    }
    starts[i] = reinterpret_cast<std::uintptr_t>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(object.ptr())));
  }
  return made;
}

// What the leaves of one dtype are like, so that those of the next value can be read in one go.
class LeafReader {
 public:
  LeafReader(nb::object dtype, std::uint8_t code, std::vector<std::vector<Py_ssize_t>> shapes)
      : dtype_(std::move(dtype)), code_(code), shapes_(std::move(shapes)) {
    if (!PyArray_DescrCheck(dtype_.ptr())) throw nb::type_error("The dtype is no numpy.dtype.");
    itemsize_ = static_cast<std::size_t>(PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(dtype_.ptr())));
    for (const auto& shape : shapes_) {
      lengths_.push_back(1);
      for (const Py_ssize_t length : shape) lengths_.back() *= static_cast<std::size_t>(length);
    }
  }

  nb::object read(const nb::list& leaves, const nb::tuple& types, const std::optional<nb::capsule>& exchange,
                  const nb::tuple& methods) const {
    if (leaves.size() != shapes_.size()) return nb::none();
    const ExchangeTable* const table = exchange ? &table_of(*exchange) : nullptr;
    std::uint64_t* starts;
    nb::object made = new_starts(shapes_.size(), starts);
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const nb::object leaf = leaves[i];
      const void* start = nullptr;
      if (PyArray_CheckExact(leaf.ptr())) {
        if (!reads_array(reinterpret_cast<PyArrayObject*>(leaf.ptr()), i, start)) return nb::none();
      } else {
        bool is_tensor = false;
        for (nb::handle type : types) is_tensor |= reinterpret_cast<PyObject*>(Py_TYPE(leaf.ptr())) == type.ptr();
        if (!is_tensor || table == nullptr || !reads_tensor(*table, leaf, i, start)) return nb::none();
        if (!is_whole(leaf, start, methods, lengths_[i], itemsize_)) return nb::none();
      }
      starts[i] = reinterpret_cast<std::uintptr_t>(start);
    }
    return made;
  }

 private:
  bool reads_array(PyArrayObject* array, std::size_t i, const void*& start) const {
    const auto& shape = shapes_[i];
    if (PyArray_DESCR(array)->type_num != reinterpret_cast<PyArray_Descr*>(dtype_.ptr())->type_num) return false;
    if (!PyArray_ISCARRAY_RO(array) || PyArray_NDIM(array) != static_cast<int>(shape.size())) return false;
    start = PyArray_DATA(array);
    return std::equal(shape.begin(), shape.end(), PyArray_DIMS(array));
  }

  bool reads_tensor(const ExchangeTable& table, nb::handle leaf, std::size_t i, const void*& start) const {
    nb::dlpack::dltensor tensor;
    if (table.tensor_of_object(leaf.ptr(), &tensor) != 0) {
      PyErr_Clear();  // it has no memory of its own
      return false;
    }
    const auto& shape = shapes_[i];
    start = static_cast<char*>(tensor.data) + tensor.byte_offset;
    return tensor.device.device_type == nb::device::cpu::value && tensor.dtype.code == code_ && tensor.dtype.lanes == 1 &&
           tensor.dtype.bits == 8 * itemsize_ && tensor.ndim == static_cast<int>(shape.size()) &&
           std::equal(shape.begin(), shape.end(), tensor.shape) && is_row_major(tensor) &&
           reinterpret_cast<std::uintptr_t>(start) % itemsize_ == 0 && (start != nullptr || lengths_[i] == 0);
  }

  nb::object dtype_;
  std::uint8_t code_;
  std::size_t itemsize_;
  std::vector<std::vector<Py_ssize_t>> shapes_;
  std::vector<std::size_t> lengths_;
};

const treefold::PartialLoops& loops_at(int level) { return *level_at(level).partial; }

Blocks add(const Arrays& arrays, const Flat<const std::uint64_t>& starts, const Flat<const std::int64_t>& offsets, int dtype,
           int level, double number, const std::vector<double>& parts, const nb::bytes& words,
           const std::optional<std::vector<std::size_t>>& asked) {
  const treefold::Factor factor{number, parts, natural_of(words)};
  const Pieces pieces = pieces_of(arrays, starts, offsets);
  const Blocks blocks = blocks_of(arrays, asked);
  const treefold::Dtype of = dtype_of(dtype);
  Blocks left;
  without_gil([&](const auto&) {
    left = treefold::add(arrays.partial, loops_at(level), of, pieces, factor, blocks);
    return false;
  });
  return left;
}

Blocks merge(const Arrays& arrays, const Arrays& other, int level, const std::optional<std::vector<std::size_t>>& asked) {
  if (other.partial.length != arrays.partial.length || other.partial.words != arrays.partial.words) {
    refuse("Partial sums of different lengths or kinds cannot be merged.");
  }
  const Blocks blocks = blocks_of(arrays, asked);
  Blocks left;
  without_gil([&](const auto&) {
    left = treefold::merge(arrays.partial, loops_at(level), other.partial, blocks);
    return false;
  });
  return left;
}

void make_whole(const Arrays& arrays, const std::vector<std::size_t>& blocks) {
  without_gil([&](const auto&) {
    treefold::make_whole(arrays.partial, blocks);
    return false;
  });
}

treefold::Divisor64 divisor_of(double high, double low, treefold::Natural words, std::int64_t exponent) {
  std::uint64_t bits;
  std::memcpy(&bits, &high, sizeof bits);
  const bool is_power = low == 0 && high != 0 && (bits << 12) == 0;
  return {high, low, is_power ? 1 / high : 0, std::move(words), exponent};
}

void finish(const Arrays& arrays, const Flat<const std::uint64_t>& starts, const Flat<const std::int64_t>& offsets, int dtype,
            int level, double high, double low, const nb::bytes& words, std::int64_t exponent) {
  const treefold::Divisor64 divisor = divisor_of(high, low, natural_of(words), exponent);
  const Pieces pieces = pieces_of(arrays, starts, offsets);
  const treefold::Dtype of = dtype_of(dtype);
  without_gil([&](const auto&) {
    treefold::finish(arrays.partial, loops_at(level), of, pieces, divisor);
    return false;
  });
}

// Addresses of contributions; `factors`: of each its weight, as `add` takes it; none: all count once.
using Weights = std::vector<std::tuple<double, std::vector<double>, nb::bytes>>;

std::vector<const void*> rows_at(const Flat<const std::uint64_t>& starts) {
  std::vector<const void*> rows(starts.shape(0));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(starts(i)));
  return rows;
}

treefold::Weighted weighted(const Flat<const std::uint64_t>& starts, const Weights& factors) {
  treefold::Weighted made{rows_at(starts), {}};
  for (const auto& [number, pieces, words] : factors) made.factors.push_back({number, pieces, natural_of(words)});
  if (factors.empty()) made.factors.resize(made.rows.size());
  if (made.factors.size() != made.rows.size()) refuse("There is not one weight for each contribution.");
  return made;
}

void check_message(const Flat<std::uint8_t>& message, treefold::Dtype dtype, std::size_t length) {
  if (message.shape(0) != treefold::message_bytes(dtype, length)) {
    refuse("This is no message of " + std::to_string(length) + " exact sums.");
  }
}

void write_message(const Flat<const std::uint64_t>& starts, const Weights& factors, int dtype, int level, std::size_t length,
                   const Flat<std::uint8_t>& message) {
  const treefold::Dtype of = dtype_of(dtype);
  check_message(message, of, length);
  const treefold::Weighted own = weighted(starts, factors);
  without_gil([&](const auto&) {
    treefold::write_message(loops_at(level), of, own, length, message.data());
    return false;
  });
}

Blocks fold_messages(const Flat<const std::uint64_t>& starts, const Weights& factors,
                     const std::vector<Flat<std::uint8_t>>& messages, int dtype, int level, std::size_t length,
                     std::uint64_t result, double high, double low) {
  const treefold::Dtype of = dtype_of(dtype);
  const treefold::Weighted own = weighted(starts, factors);
  std::vector<const void*> others;
  for (const auto& message : messages) {
    check_message(message, of, length);
    others.push_back(message.data());
  }
  const treefold::Divisor64 divisor = divisor_of(high, low, {}, 0);
  Blocks left;
  without_gil([&](const auto&) {
    void* const end = reinterpret_cast<void*>(static_cast<std::uintptr_t>(result));
    left = treefold::fold_messages(loops_at(level), of, own, others, length, divisor, end);
    return false;
  });
  return left;
}

}  // namespace

void define_partials(nb::module_& module) {
  nb::class_<Arrays>(module, "PartialArrays", "The arrays of one partial sum, for calls of the core.")
      .def(nb::init<std::size_t, int, Flat<std::uint8_t>, Flat<double>, std::optional<Flat<double>>, Flat<const std::uint32_t>,
                    Table<std::uint32_t>>(),
           nb::arg("length"), nb::arg("least_unit"), nb::arg("modes"), nb::arg("sums"), nb::arg("rests").none(),
           nb::arg("places"), nb::arg("wholes"));
  nb::class_<LeafReader>(module, "LeafReader", "What the leaves of one dtype are like: shapes, and DLPack's code of the dtype.")
      .def(nb::init<nb::object, std::uint8_t, std::vector<std::vector<Py_ssize_t>>>(), nb::arg("dtype"), nb::arg("code"),
           nb::arg("shapes"))
      .def("read", &LeafReader::read, nb::arg("leaves"), nb::arg("types"), nb::arg("exchange").none(), nb::arg("methods"),
           "Return where leaves begin in host memory; None if one is no plain array like the one before, or no tensor of\n"
           "one of the types, which ``exchange`` and ``methods`` read as in ``read_tensors``.");
  module.def("addresses_of", &addresses_of, nb::arg("arrays"), "Return where NumPy arrays begin, as one of uint64.");
  module.def("add_to_partial", &add, nb::arg("partial"), nb::arg("starts"), nb::arg("offsets"), nb::arg("dtype"),
             nb::arg("level"), nb::arg("number"), nb::arg("parts"), nb::arg("words"), nb::arg("blocks").none(),
             "Add contributions, given by addresses and by where each begins, times a weight.\n\n"
             "Return the blocks that were left as they were, because they have to be held in the next mode first.");
  module.def("merge_partials", &merge, nb::arg("partial"), nb::arg("other"), nb::arg("level"), nb::arg("blocks").none(),
             "Add another partial sum. Return the blocks that were left as they were, as ``add_to_partial``.");
  module.def("make_whole", &make_whole, nb::arg("partial"), nb::arg("blocks"),
             "Write what blocks hold as floats into their whole numbers, which are 0.");
  module.def("finish_partial", &finish, nb::arg("partial"), nb::arg("starts"), nb::arg("offsets"), nb::arg("dtype"),
             nb::arg("level"), nb::arg("high"), nb::arg("low"), nb::arg("words"), nb::arg("exponent"),
             "Divide by high + low, or by words * 2**(exponent - 64), and round once, into memory at addresses.");
  module.def("write_partial_message", &write_message, nb::arg("starts"), nb::arg("factors"), nb::arg("dtype"), nb::arg("level"),
             nb::arg("length"), nb::arg("message"),
             "Add contributions at addresses, each times its weight, and write their exact sums into a message.");
  module.def("fold_partial_messages", &fold_messages, nb::arg("starts"), nb::arg("factors"), nb::arg("messages"),
             nb::arg("dtype"), nb::arg("level"), nb::arg("length"), nb::arg("result"), nb::arg("high"), nb::arg("low"),
             "Add contributions and messages, divide by high + low, and round once, into memory at an address.\n\n"
             "Return the blocks that were left alone.");
}
