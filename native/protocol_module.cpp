#include <cstdint>
#include <utility>

#include "group_module.hpp"

#if defined(__linux__)

#include <unistd.h>

#include "group/operation.hpp"

namespace nb = nanobind;
namespace tg = treefold::group;

namespace {

// The tables of the protocol, by names, for tests that step through it.
nb::dict protocol() {
  nb::dict tables;
  nb::list moves;
  for (const tg::Transition& t : tg::transitions) {
    moves.append(nb::make_tuple(tg::phase_names[static_cast<int>(t.from)], tg::event_names[static_cast<int>(t.event)],
                                tg::phase_names[static_cast<int>(t.to)]));
  }
  const auto stages = [](const auto& list) {
    nb::list names;
    for (const tg::Stage stage : list) {
      if (stage != tg::Stage::end) names.append(nb::str(tg::stage_names[static_cast<int>(stage)]));
    }
    return nb::tuple(names);
  };
  nb::dict programs;
  for (const tg::Program& program : tg::programs) {
    programs[tg::path_names[static_cast<int>(program.path)]] = nb::make_tuple(stages(program.body), stages(program.tail));
  }
  tables["transitions"] = nb::tuple(moves);
  tables["prologue"] = stages(tg::prologue);
  tables["programs"] = programs;
  return tables;
}

// A function that tests set, called with the stage, moment, operation and chunk. Never released: it may outlive Python.
PyObject* hook_for_tests = nullptr;

void call_hook(tg::Stage stage, tg::Moment moment, std::uint64_t sequence, std::size_t chunk) {
  static constexpr const char* moments[] = {"before", "decided", "after"};
  const nb::gil_scoped_acquire gil;
  const nb::handle hook = hook_for_tests;
  const pid_t before = getpid();
  hook(tg::stage_names[static_cast<int>(stage)], moments[static_cast<int>(moment)], sequence, chunk);
  if (getpid() != before) throw tg::Forked{};
}

}  // namespace

void define_protocol(nb::module_& module) {
  module.def("group_protocol", &protocol, "Return the tables by which the ranks of one host agree, in names.");
  module.def(
      "set_stage_hook",
      [](nb::object hook) {
        tg::set_stage_hook(hook.is_none() ? nullptr : &call_hook);
        Py_XDECREF(std::exchange(hook_for_tests, hook.release().ptr()));
      },
      nb::arg("hook").none(), "Call hook(stage, moment, sequence, chunk) around every stage of every operation: for tests.");
}

#endif
