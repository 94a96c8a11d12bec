#include "pipeline_module.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>

#include "pipeline.hpp"

namespace nb = nanobind;

namespace {

template <typename T>
using Flat = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void expect(bool holds, const char* sentence) {
  if (!holds) throw nb::value_error(sentence);
}

bool are_starts(const Flat<std::int32_t>& starts, std::size_t count, std::size_t end) {
  const auto* const first = starts.data();
  return starts.size() == count + 1 && first[0] == 0 && std::is_sorted(first, first + count + 1) &&
         static_cast<std::size_t>(first[count]) == end;
}

bool are_below(const Flat<std::int32_t>& indices, std::size_t limit) {
  return std::all_of(indices.data(), indices.data() + indices.size(),
                     [limit](std::int32_t index) { return index >= 0 && static_cast<std::size_t>(index) < limit; });
}

// Whether a signal has made Python raise; called without the GIL.
bool is_interrupted() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

void run(const Flat<std::int32_t>& task, const Flat<double>& nbytes, const Flat<double>& alpha_s,
         const Flat<std::int32_t>& resource_start, const Flat<std::int32_t>& resources, const Flat<std::int32_t>& need_start,
         const Flat<std::int32_t>& need_task, const Table<const std::int32_t>& need_counts, const Flat<double>& capacities,
         const Table<double>& starts, const Table<double>& stops) {
  const std::size_t lanes = task.size(), chunks = starts.shape(1), tasks = need_start.size() - 1;
  expect(need_start.size() > 0 && nbytes.size() == lanes && alpha_s.size() == lanes && starts.shape(0) == lanes &&
             stops.shape(0) == lanes && stops.shape(1) == chunks,
         "run_pipeline got arrays that disagree in the number of lanes or chunks.");
  expect(are_starts(resource_start, lanes, resources.size()) && are_starts(need_start, tasks, need_task.size()) &&
             need_counts.shape(0) == need_task.size() && need_counts.shape(1) == chunks,
         "run_pipeline got ranges that do not fit the arrays they cut.");
  expect(are_below(task, tasks) && are_below(need_task, tasks) && are_below(resources, capacities.size()),
         "run_pipeline got an index of something that is not there.");
  expect(std::all_of(capacities.data(), capacities.data() + capacities.size(), [](double c) { return c > 0; }),
         "run_pipeline got a resource of no capacity.");
  const treefold::Lanes all{lanes,
                            tasks,
                            capacities.size(),
                            chunks,
                            task.data(),
                            nbytes.data(),
                            alpha_s.data(),
                            resource_start.data(),
                            resources.data(),
                            need_start.data(),
                            need_task.data(),
                            need_counts.data(),
                            capacities.data()};
  bool is_done = false;
  {
    const nb::gil_scoped_release no_gil;
    is_done = treefold::run_pipeline(all, starts.data(), stops.data(), &is_interrupted);
  }
  if (!is_done) throw nb::python_error();
}

}  // namespace

void define_pipeline(nb::module_& module) {
  module.def("run_pipeline", &run, nb::arg("task"), nb::arg("nbytes"), nb::arg("alpha_s"), nb::arg("resource_start"),
             nb::arg("resources"), nb::arg("need_start"), nb::arg("need_task"), nb::arg("need_counts"), nb::arg("capacities"),
             nb::arg("starts"), nb::arg("stops"),
             "Run lanes on shared resources and fill in when each chunk started and stopped.");
}
