#include "rows_module.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#define NO_IMPORT_ARRAY
#include <numpy/ndarrayobject.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "border.hpp"
#include "exchange_module.hpp"
#include "results_module.hpp"

namespace nb = nanobind;

namespace {

// Tells whether the type number alone identifies a dtype: numbers, bool and registered types. Dates also have a unit.
bool is_known(const PyArray_Descr* descr) {
  const int number = descr->type_num;
  return number < NPY_OBJECT || number == NPY_HALF || PyTypeNum_ISUSERDEF(number);
}

void set_shape(Row& row, const Py_ssize_t* shape, int ndim, nb::handle dtype) {
  row.shape.assign(shape, shape + ndim);
  for (const Py_ssize_t length : row.shape) row.length *= static_cast<std::size_t>(length);
  row.dtype = nb::borrow(dtype);
  row.itemsize = static_cast<std::size_t>(PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(dtype.ptr())));
}

// Sets the key by which a call is recognised: backend, dtype, device, number of arrays, shape, and `extra`.
void set_key(Row& row, std::int32_t device_type, std::int32_t device_index, nb::handle extra) {
  const std::int64_t words[]{reinterpret_cast<PyArray_Descr*>(row.dtype.ptr())->type_num, device_type, device_index,
                             static_cast<std::int64_t>(row.starts.size())};
  const std::size_t shape_bytes = row.shape.size() * sizeof row.shape[0];
  const nb::object form = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(sizeof words + shape_bytes)));
  if (!form.is_valid()) throw nb::python_error();
  char* const written = PyBytes_AS_STRING(form.ptr());
  std::memcpy(written, words, sizeof words);
  if (shape_bytes != 0) std::memcpy(written + sizeof words, row.shape.data(), shape_bytes);
  row.key = extra.is_none() ? nb::make_tuple(row.backend, form) : nb::make_tuple(row.backend, form, extra);
}

nb::object read_arrays(const nb::object& backend, const nb::tuple& arrays, const nb::tuple& views, nb::handle extra) {
  if (views.size() != arrays.size()) refuse("A row has a view of each of its arrays.");
  Row row;
  row.starts.reserve(views.size());
  const PyArrayObject* first = nullptr;
  for (nb::handle object : views) {
    // A subclass may give its memory another meaning, as masked arrays do.
    if (!PyArray_CheckExact(object.ptr())) return nb::none();
    auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_ISCARRAY_RO(array)) return nb::none();
    PyArray_Descr* const descr = PyArray_DESCR(array);
    if (first == nullptr) {
      if (!is_known(descr)) return nb::none();
      first = array;
      set_shape(row, PyArray_DIMS(array), PyArray_NDIM(array), nb::handle(reinterpret_cast<PyObject*>(descr)));
    } else if (PyArray_NDIM(array) != PyArray_NDIM(first) ||
               !PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(first), PyArray_NDIM(first)) ||
               (descr != PyArray_DESCR(first) && !PyArray_EquivTypes(descr, PyArray_DESCR(first)))) {
      return nb::none();
    }
    row.is_writable = row.is_writable && PyArray_ISWRITEABLE(array);
    row.starts.push_back(PyArray_DATA(array));
  }
  if (first == nullptr) return nb::none();
  row.backend = backend;
  row.arrays = arrays;
  row.views = views;
  set_key(row, nb::device::cpu::value, 0, extra);
  return nb::cast(std::move(row));
}

nb::object answer(nb::handle method, nb::handle object) {
  PyObject* const arguments[]{object.ptr()};
  nb::object answered = nb::steal(PyObject_Vectorcall(method.ptr(), arguments, 1, nullptr));
  if (!answered.is_valid()) throw nb::python_error();
  return answered;
}

}  // namespace

bool is_whole(nb::handle tensor, const void* start, const nb::tuple& methods, std::size_t length, std::size_t itemsize) {
  if (methods.size() == 0) return true;
  if (methods.size() < 3) refuse("The methods are those for storage, nbytes and offset, and others.");
  for (std::size_t i = 3; i < methods.size(); ++i) {
    if (answer(methods[i], tensor).is(Py_True)) return false;
  }
  const auto room = nb::cast<std::size_t>(answer(methods[1], answer(methods[0], tensor)));
  const std::size_t offset = itemsize * nb::cast<std::size_t>(answer(methods[2], tensor));
  if (length != 0 && reinterpret_cast<std::uintptr_t>(start) == offset) return false;
  return room >= length * itemsize + offset;
}

namespace {

nb::object read_tensors(const nb::object& backend, const nb::capsule& exchange, const nb::tuple& tensors, nb::handle dtype,
                        nb::handle extra, const nb::tuple& methods) {
  const ExchangeTable& table = table_of(exchange);
  if (!PyArray_DescrCheck(dtype.ptr())) throw nb::type_error("The dtype is no numpy.dtype.");
  Row row;
  row.starts.reserve(tensors.size());
  nb::dlpack::dltensor first{};
  for (nb::handle object : tensors) {
    nb::dlpack::dltensor tensor;
    if (table.tensor_of_object(object.ptr(), &tensor) != 0) {
      PyErr_Clear();  // it has no memory of its own
      return nb::none();
    }
    if (row.starts.empty()) {
      first = tensor;
      set_shape(row, tensor.shape, tensor.ndim, dtype);
      if (tensor.dtype.lanes != 1 || tensor.dtype.bits != 8 * row.itemsize) return nb::none();
    }
    const bool agrees = tensor.device.device_type == first.device.device_type && tensor.dtype == first.dtype &&
                        tensor.device.device_id == first.device.device_id && tensor.ndim == first.ndim &&
                        std::equal(tensor.shape, tensor.shape + tensor.ndim, row.shape.begin());
    void* const start = static_cast<char*>(tensor.data) + tensor.byte_offset;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(start) % std::min<std::size_t>(row.itemsize, 8) == 0;
    if (!agrees || !is_row_major(tensor) || !is_aligned || (start == nullptr && row.length != 0)) return nb::none();
    if (!is_whole(object, start, methods, row.length, row.itemsize)) return nb::none();
    row.starts.push_back(start);
  }
  if (row.starts.empty()) return nb::none();
  row.is_on_host = first.device.device_type == nb::device::cpu::value;
  row.backend = backend;
  row.arrays = tensors;
  row.views = nb::none();
  set_key(row, first.device.device_type, first.device.device_id, extra);
  return nb::cast(std::move(row));
}

// Returns a row of new arrays of another row's shape. `make` makes one, and returns it and where it begins.
template <typename Make>
nb::object made_row(const nb::object& backend, const Row& like, nb::handle dtype, Py_ssize_t count, const Make& make) {
  if (count < 1) refuse("A row has an array at least.");
  if (!PyArray_DescrCheck(dtype.ptr())) throw nb::type_error("The dtype is no numpy.dtype.");
  Row row;
  set_shape(row, like.shape.data(), static_cast<int>(like.shape.size()), dtype);
  row.starts.reserve(static_cast<std::size_t>(count));
  const nb::object arrays = nb::steal(PyTuple_New(count));
  if (!arrays.is_valid()) throw nb::python_error();
  for (Py_ssize_t index = 0; index < count; ++index) {
    NewTensor made = make(row);
    PyTuple_SET_ITEM(arrays.ptr(), index, made.tensor.release().ptr());
    row.starts.push_back(made.start);
  }
  row.backend = backend;
  row.arrays = arrays;
  row.views = row.key = nb::none();
  return nb::cast(std::move(row));
}

nb::object new_arrays(const nb::object& backend, const Row& like, nb::handle dtype, Py_ssize_t count) {
  return made_row(backend, like, dtype, count, [&](const Row& row) {
    nb::object array = new_array(row.shape, dtype);
    void* const start = PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()));
    return NewTensor{std::move(array), start};
  });
}

nb::object new_tensors(const nb::object& backend, const Row& like, nb::handle dtype, Py_ssize_t count,
                       const nb::capsule& exchange, std::uint8_t code) {
  const ExchangeTable& table = table_of(exchange);
  const Layout layout = row_major_layout(like.shape);
  return made_row(backend, like, dtype, count, [&](const Row& row) {
    return new_tensor(table, layout, {code, static_cast<std::uint8_t>(8 * row.itemsize), 1}, row.nbytes());
  });
}

}  // namespace

void add_extents(std::vector<Extent>& extents, const Row& row, bool is_written) {
  for (const void* start : row.starts) {
    const char* const begin = static_cast<const char*>(start);
    if (row.nbytes() > 0) extents.push_back({begin, begin + row.nbytes(), is_written});
  }
}

// One pass over the extents by their begin is enough: it compares each with the farthest ends so far.
bool are_disjoint(std::vector<Extent>& extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const char *last = nullptr, *last_written = nullptr;  // the ends so far
  for (const Extent& extent : extents) {
    // Sources may overlap sources. A written extent must begin behind all others so far, any other behind the written
    // ones.
    if (extent.begin < (extent.is_written ? last : last_written)) return false;
    last = std::max(last, extent.end);
    if (extent.is_written) last_written = std::max(last_written, extent.end);
  }
  return true;
}

namespace {

// Tells whether two rows have the same arrays in the same order.
bool is_same(const Row& row, const Row& other) {
  return row.starts == other.starts &&
         (row.dtype.is(other.dtype) || PyArray_EquivTypes(reinterpret_cast<PyArray_Descr*>(row.dtype.ptr()),
                                                          reinterpret_cast<PyArray_Descr*>(other.dtype.ptr())));
}

// One kind of fold. The loop for each leaf is looked up once, when the fold is made.
class RowFold {
 public:
  RowFold(const nb::tuple& dtypes, int op, int accumulate, int level) {
    const Request request = fold_request(op, accumulate, level);
    for (nb::handle dtype : dtypes) items_.push_back(item_of(nb::cast<int>(dtype), request));
  }

  bool fold(const nb::list& rows, const nb::list& targets, const nb::object& before) const {
    if (rows.size() != items_.size() || targets.size() != items_.size()) {
      refuse("RowFold takes " + std::to_string(items_.size()) + " rows, and as many targets.");
    }
    // A copy: many threads may repeat the same kind of fold at once.
    std::vector<treefold::Item> items = items_;
    std::vector<Extent> extents;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Row& row = nb::cast<const Row&>(rows[i]);
      const Row& target = nb::cast<const Row&>(targets[i]);
      if (!add(items[i], row, target)) {
        refuse("RowFold got row " + std::to_string(i) + " of another length, dtype or device than its target or its fold.");
      }
      if (!target.is_writable) return false;
      if (i == 0) extents.reserve(items.size() * (row.starts.size() + target.starts.size()));
      if (!items[i].in_place) add_extents(extents, row, false);
      add_extents(extents, target, true);
    }
    if (!are_disjoint(extents)) return false;
    // After the last refusal and before the first write: a framework that counts writes must not count one that never
    // came.
    if (!before.is_none()) before(targets);
    run(items);
    return true;
  }

 private:
  static bool add(treefold::Item& item, const Row& row, const Row& target) {
    item.sources = row.starts.data();
    item.arithmetic.count = row.starts.size();
    item.targets = target.starts.data();
    item.target_count = target.starts.size();
    item.length = row.length;
    item.in_place = is_same(row, target);
    return row.itemsize == item.source_bytes && target.itemsize == item.target_bytes && row.length == target.length &&
           row.is_on_host && target.is_on_host;
  }

  std::vector<treefold::Item> items_;
};

nb::tuple shape_of(const Row& row) {
  nb::list shape;
  for (const Py_ssize_t length : row.shape) shape.append(length);
  return nb::tuple(shape);
}

nb::tuple addresses_of(const Row& row) {
  nb::list addresses;
  for (const void* start : row.starts) addresses.append(reinterpret_cast<std::uintptr_t>(start));
  return nb::tuple(addresses);
}

}  // namespace

void define_rows(nb::module_& module) {
  nb::class_<Row>(module, "Row", "One leaf in every replica: arrays of one shape and dtype, row-major, on one device.")
      .def_ro("backend", &Row::backend)
      .def_ro("arrays", &Row::arrays)
      .def_ro("views", &Row::views, "NumPy arrays on the memory of the arrays, None if it was read by DLPack.")
      .def_ro("dtype", &Row::dtype)
      .def_ro("key", &Row::key, "Equal for rows of equal backend, dtype, device, shape, count and ``extra``.")
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("addresses", &addresses_of);
  module.def("read_arrays", &read_arrays, nb::arg("backend").none(), nb::arg("arrays"), nb::arg("views"),
             nb::arg("extra").none() = nb::none(),
             "Return arrays, whose memory NumPy arrays show, as a row; None if they make none.\n\n"
             "``extra``: joins the key; calls whose arrays differ in it are different calls.");
  module.def("read_tensors", &read_tensors, nb::arg("backend").none(), nb::arg("exchange"), nb::arg("tensors"),
             nb::arg("dtype"), nb::arg("extra").none() = nb::none(), nb::arg("methods") = nb::tuple(),
             "Return tensors, of NumPy's ``dtype``, as a row; None if they make none.\n\n"
             "``exchange``: the capsule ``__dlpack_c_exchange_api__`` of the tensors' type; all of them are of that type.\n"
             "``methods``: of their type, what returns a tensor's storage, that one's nbytes, the tensor's offset in it, and\n"
             "what is true of tensors that make no row. Storages may have been resized under their tensors.");
  module.def("new_arrays", &new_arrays, nb::arg("backend").none(), nb::arg("like"), nb::arg("dtype"), nb::arg("count"),
             "Return a row of new NumPy arrays, uninitialised, of another row's shape.");
  module.def("new_tensors", &new_tensors, nb::arg("backend").none(), nb::arg("like"), nb::arg("dtype"), nb::arg("count"),
             nb::arg("exchange"), nb::arg("code"),
             "Return a row of new tensors, uninitialised, of another row's shape, in host memory.\n\n"
             "``code``: what DLPack calls the kind of the dtype. Large memory comes from a cache, and returns there when\n"
             "its last owner is gone.");
  nb::class_<RowFold>(module, "RowFold", "One kind of fold of rows: for each row the number of its dtype, the op.")
      .def(nb::init<const nb::tuple&, int, int, int>(), nb::arg("dtypes"), nb::arg("op"), nb::arg("accumulate"),
           nb::arg("level"))
      .def("fold", &RowFold::fold, nb::arg("rows"), nb::arg("targets"), nb::arg("before").none() = nb::none(),
           "Fold each row into the arrays of its target, which may be the row itself. Return False, and do nothing, "
           "unless\n"
           "targets can be written and none of them shares memory with another array of the call.\n\n"
           "``before``: called with the targets once nothing is refused any more, before anything is written.");
}
