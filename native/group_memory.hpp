// What a group's Python objects hold: the mapped segment, claims on its areas, arrays on it.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL treefold_numpy
#define NO_IMPORT_ARRAY
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <numpy/ndarrayobject.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "group/segment.hpp"

[[noreturn]] inline void raise_errno(int error) {
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nanobind::python_error();
}

// The mapped segment. Arrays on it keep it mapped, also after the group is closed.
struct Mapping {
  Mapping(int fd_, const treefold::group::Layout& layout_)
      : fd(fcntl(fd_, F_DUPFD_CLOEXEC, 0)), layout(layout_), base(treefold::group::map_segment(fd, layout)) {
    if (base == nullptr) {
      const int error = errno;
      if (fd >= 0) close(fd);
      raise_errno(error);
    }
  }
  ~Mapping() {
    treefold::group::unmap_segment(base, layout);
    close(fd);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const int fd;
  const treefold::group::Layout layout;
  std::byte* const base;
};

// A claim of this rank on a result area, which is not used again while it exists. A forked child drops none of the
// claims of its parent.
class Lease {
 public:
  Lease(std::shared_ptr<Mapping> mapping, std::atomic<std::uint32_t>& count)
      : mapping_(std::move(mapping)), count_(count), owner_(getpid()) {
    // Before this rank's next arrival at a meeting, which releases it: no later choice finds the area free.
    count_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~Lease() {
    // Release, for the reads of whoever drops the last view; is_leased() acquires it before the area is written again.
    if (getpid() == owner_) count_.fetch_sub(1, std::memory_order_acq_rel);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  // Keeps the memory of `count_` mapped.
  const std::shared_ptr<Mapping> mapping_;
  std::atomic<std::uint32_t>& count_;
  const pid_t owner_;
};

// What keeps the memory of an array alive.
template <class T>
nanobind::object capsule_of(std::shared_ptr<T> held) {
  auto* const owner = new std::shared_ptr<T>(std::move(held));
  return nanobind::steal(PyCapsule_New(owner, nullptr, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, nullptr));
  }));
}

inline nanobind::object array_on(std::byte* start, const nanobind::tuple& shape, nanobind::handle dtype, nanobind::object owner,
                                 bool is_writable) {
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(dtype.ptr(), &descr) == NPY_FAIL) throw nanobind::python_error();
  std::vector<npy_intp> lengths;
  for (nanobind::handle length : shape) lengths.push_back(nanobind::cast<npy_intp>(length));
  const int flags = is_writable ? NPY_ARRAY_CARRAY : NPY_ARRAY_CARRAY_RO;
  PyObject* const array = PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(lengths.size()), lengths.data(), nullptr,
                                               start, flags, nullptr);
  if (array == nullptr) throw nanobind::python_error();
  nanobind::object result = nanobind::steal(array);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner.release().ptr()) != 0)
    throw nanobind::python_error();
  return result;
}

// Gives the GIL back to a thread. Before Python 3.14, a thread that asks for it when the interpreter has ended is unwound
// from here, which would end in an abort further up: it waits for the end of the process instead.
inline void restore(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {  // Python itself throws nothing
    for (;;) ::pause();
  }
}
