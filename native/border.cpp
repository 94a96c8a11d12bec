#include "border.hpp"

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "dispatch.hpp"

namespace nb = nanobind;

namespace {

using treefold::Item;

bool is_integer(int dtype) {
  return dtype >= static_cast<int>(treefold::Dtype::int8) && dtype <= static_cast<int>(treefold::Dtype::uint64);
}

treefold::Loop loop_for(int dtype, const Request& request) {
  if (request.op < 0) return request.level->traffic;
  if (request.weights != nullptr) return request.level->weighted_mean[dtype];
  return request.level->loops[dtype][request.op][request.accumulate];
}

// The MEAN of integers is float64 for 32 and 64 bits, else float32.
std::size_t target_bytes(int dtype, int op) {
  if (op == static_cast<int>(treefold::Op::mean) && is_integer(dtype)) return treefold::element_bytes[dtype] < 4 ? 4 : 8;
  return treefold::element_bytes[dtype];
}

// Reacquires the GIL. While the interpreter shuts down, Python before 3.14 unwinds the stack of a thread that asks for
// it. That would reach frames that cannot be unwound and crash the process, so such a thread sleeps until the end.
void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

}  // namespace

void refuse(const std::string& sentence) { throw nb::value_error(sentence.c_str()); }

const treefold::Level& level_at(int index) {
  const auto& levels = treefold::usable_levels();
  if (index < 0 || index >= static_cast<int>(levels.size())) {
    refuse("There is no vector level " + std::to_string(index) + " on this machine.");
  }
  return *levels[static_cast<std::size_t>(index)];
}

Request fold_request(int op, int accumulate, int level) {
  if (op < 0 || op >= treefold::op_count) refuse("fold knows no op " + std::to_string(op) + ".");
  if (accumulate < 0 || accumulate >= treefold::accumulation_count) {
    refuse("fold knows no accumulation " + std::to_string(accumulate) + ".");
  }
  return {op, accumulate, &level_at(level)};
}

Item item_of(int dtype, const Request& request) {
  if (dtype < 0 || dtype >= treefold::dtype_count) refuse("fold knows no dtype " + std::to_string(dtype) + ".");
  Item item{};
  item.loop = loop_for(dtype, request);
  if (item.loop == nullptr) refuse("fold has no meaning for this op and dtype " + std::to_string(dtype) + ".");
  item.source_bytes = treefold::element_bytes[dtype];
  item.target_bytes = target_bytes(dtype, request.op);
  return item;
}

std::vector<std::uint32_t> words_of(const nb::bytes& weights, std::size_t words_each) {
  const std::size_t nbytes = weights.size();
  if (words_each == 0 || nbytes % (4 * words_each) != 0) refuse("These are not the bytes of weights.");
  std::vector<std::uint32_t> words(nbytes / 4);
  std::memcpy(words.data(), weights.c_str(), nbytes);
  return words;
}

void without_gil(const std::function<bool(const std::function<bool()>& interrupted)>& body) {
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
    // An exception must not leave before the GIL is back: unwinding drops Python objects.
    was_interrupted = body(interrupted);
  } catch (const std::exception&) {  // no memory for the tasks
    error = std::current_exception();
  }
  take_gil(state);
  if (error) std::rethrow_exception(error);
  if (was_interrupted) throw nb::python_error();
}

void run(const std::vector<Item>& items, const treefold::Manner& manner) {
  // Releasing the GIL and checking for signals take longer than a small fold.
  if (manner.task_bytes == 0 && treefold::fold_if_small(items)) return;
  without_gil([&](const auto& interrupted) { return treefold::fold_batch(items, interrupted, manner); });
}
