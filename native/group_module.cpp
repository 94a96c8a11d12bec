#include "group_module.hpp"

#if !defined(__linux__)

void define_groups(nanobind::module_& module) { module.attr("HAS_SHARED_MEMORY") = false; }

#else

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>

#include "border.hpp"
#include "group/arena.hpp"
#include "group/operation.hpp"
#include "group_memory.hpp"
#include "rows_module.hpp"

namespace nb = nanobind;
namespace tg = treefold::group;

namespace {

constexpr std::size_t line = 64;

// A kind of fold in a group: everything about a call but its memory.
struct Form {
  Form(const nb::bytes& kind, const std::string& description, const std::vector<std::pair<int, std::size_t>>& leaves, int op,
       int accumulate, int level, bool is_weighted) {
    call.description = description;
    const treefold::Weights some_weights({1}, 1);
    Request request = fold_request(op, accumulate, level);
    if (is_weighted) request.weights = &some_weights;
    for (const auto& [dtype, length] : leaves) {
      const treefold::Item item = item_of(dtype, request);
      call.leaves.push_back({item.loop, length, item.source_bytes, item.target_bytes, call.stream_bytes, call.result_bytes});
      call.stream_bytes += (length * item.source_bytes + line - 1) / line * line;
      call.result_bytes += (length * item.target_bytes + line - 1) / line * line;
    }
    set_kind(call, kind);
  }

  static void set_kind(tg::Call& call, const nb::bytes& kind) {
    if (kind.size() != sizeof call.kind) refuse("The kind of a call has " + std::to_string(sizeof call.kind) + " bytes.");
    std::memcpy(call.kind, kind.c_str(), sizeof call.kind);
  }

  nb::list results_at() const {
    nb::list offsets;
    for (const tg::Leaf& leaf : call.leaves) offsets.append(leaf.result_at);
    return offsets;
  }

  tg::Call call;
};

// How an operation ended, for Python.
struct Ended {
  tg::Outcome outcome;
  std::shared_ptr<Mapping> mapping;
  std::shared_ptr<Lease> lease;

  nb::object view(std::size_t at, const nb::tuple& shape, nb::handle dtype) const {
    const nb::object owner = lease ? capsule_of(lease) : capsule_of(mapping);
    return array_on(mapping->base + outcome.area_offset + at, shape, dtype, owner, false);
  }
};

std::vector<tg::Piece> pieces_of(const nb::list& entries) {
  std::vector<tg::Piece> pieces;
  pieces.reserve(nb::len(entries));
  for (nb::handle entry : entries) {
    const auto [at, address, nbytes] = nb::cast<std::tuple<std::size_t, std::uintptr_t, std::size_t>>(entry);
    pieces.push_back({at, reinterpret_cast<std::byte*>(address), nbytes});
  }
  return pieces;
}

class HostGroup {
 public:
  HostGroup(int fd, std::size_t rank, std::size_t ranks, std::size_t result_bytes, std::size_t arena_bytes,
            const std::vector<std::tuple<int, int>>& peers, bool spins)
      : mapping_(std::make_shared<Mapping>(fd, tg::Layout::of(ranks, result_bytes, arena_bytes))),
        arena_(std::make_shared<tg::Arena>(mapping_->base, mapping_->fd, mapping_->layout.arena(rank),
                                           mapping_->layout.arena_bytes)),
        meetings_(mapping_->base, mapping_->layout, rank, peers_of(peers), spins),
        areas_(mapping_->base, mapping_->fd, mapping_->layout),
        operation_(meetings_, areas_, mapping_->base, mapping_->layout) {
    for (const auto& [lifeline, pid] : peers) descriptors_.push_back(lifeline);
  }
  ~HostGroup() {
    if (getpid() == owner_) leave("left");
    for (const int descriptor : descriptors_) {
      if (descriptor >= 0) close(descriptor);
    }
  }
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  nb::object fold(const Form& form, const nb::list& rows, const nb::object& targets, bool wants_lease, const nb::bytes& weights,
                  std::size_t weight_words, std::uint64_t plan, double seconds, const nb::object& warn,
                  const std::vector<std::vector<std::size_t>>& counts) {
    tg::Call call = form.call;
    if (rows.size() != call.leaves.size()) refuse("A call of other leaves than its form.");
    for (nb::handle row : rows) call.replicas = std::max(call.replicas, nb::cast<const Row&>(row).starts.size());
    std::vector<Extent> extents;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& row = nb::cast<const Row&>(rows[i]);
      const tg::Leaf& leaf = call.leaves[i];
      const std::size_t missing = call.replicas - row.starts.size();
      if (row.starts.empty() || call.replicas > tg::most_replicas || row.length != leaf.length ||
          row.itemsize != leaf.source_bytes || !row.is_on_host) {
        refuse("A row of another length, dtype or device than its form, or of more replicas than a rank has.");
      }
      for (const void* start : row.starts) call.sources.push_back(static_cast<const std::byte*>(start));
      call.sources.insert(call.sources.end(), missing, nullptr);
      call.is_mixed = call.is_mixed || missing != 0;
      if (targets.is_none() || targets[i].is_none()) continue;
      const Row& target = nb::cast<const Row&>(targets[i]);
      if (target.starts.size() != 1 || target.length != leaf.length || target.itemsize != leaf.target_bytes ||
          !target.is_on_host) {
        refuse("A target of another length, dtype or device than its form.");
      }
      if (!target.is_writable) return nb::none();
      // The target may be exactly one of the contributions: it is written when all of them have been read.
      for (const void* start : row.starts) {
        const char* const begin = static_cast<const char*>(start);
        if (start != target.starts[0] && row.nbytes() != 0) extents.push_back({begin, begin + row.nbytes(), false});
      }
      add_extents(extents, target, true);
      if (target.nbytes() != 0) {
        call.pieces_out.push_back({leaf.result_at, static_cast<std::byte*>(target.starts[0]), target.nbytes()});
      }
    }
    if (!are_disjoint(extents)) return nb::none();
    if (call.leaves.empty()) call.replicas = 1;
    call.wants_lease = wants_lease;
    call.weights = words_of(weights, weight_words);
    call.weight_words = weight_words;
    call.plan = plan;
    call.counts = counts;
    return nb::cast(run(call, seconds, warn));
  }

  Ended place(const nb::bytes& kind, std::size_t result_bytes, const nb::list& sources, const nb::list& targets,
              bool wants_lease, const std::string& description, double seconds, const nb::object& warn) {
    tg::Call call;
    Form::set_kind(call, kind);
    call.result_bytes = result_bytes;
    call.pieces_in = pieces_of(sources);
    call.pieces_out = pieces_of(targets);
    for (const tg::Piece& piece : call.pieces_in) {
      if (piece.at > result_bytes || piece.nbytes > result_bytes - piece.at) refuse("A piece lies outside the results.");
    }
    call.wants_lease = wants_lease;
    call.description = description;
    return run(call, seconds, warn);
  }

  Ended agree(const nb::bytes& kind, const nb::bytes& blob, const std::string& description, bool is_refused, double seconds,
              const nb::object& warn) {
    if (blob.size() > tg::blob_bytes) refuse("Ranks agree on " + std::to_string(tg::blob_bytes) + " bytes at most.");
    tg::Call call;
    Form::set_kind(call, kind);
    call.blob = std::string(blob.c_str(), blob.size());
    call.description = description;
    call.is_refused = is_refused;
    return run(call, seconds, warn);
  }

  nb::object empty(const nb::tuple& shape, nb::handle dtype, std::size_t nbytes) {
    std::size_t offset = 0;
    const int error = arena_->take(nbytes, offset);
    if (error != 0) raise_errno(error);
    const auto owner = std::shared_ptr<void>(nullptr, [arena = arena_, mapping = mapping_, offset, pid = getpid()](void*) {
      // The mutex of the arena is a copy in a forked child, perhaps locked for ever, and the pages are the parent's.
      if (getpid() == pid) arena->give_back(offset);
    });
    return array_on(mapping_->base + offset, shape, dtype, capsule_of(owner), true);
  }

  // Tells the others that this rank closes the group, and why.
  void leave(const std::string& cause) {
    const auto found = std::find(std::begin(tg::cause_names), std::end(tg::cause_names), cause);
    const auto number = static_cast<std::uint32_t>(found - std::begin(tg::cause_names));
    std::uint32_t none = 0;
    // The first reason stays: closing after an interrupt must not say that all was well.
    meetings_.block(meetings_.rank()).departure.compare_exchange_strong(none, number);
    meetings_.wake();
  }

  // The number of the last operation.
  std::uint64_t sequence() const { return sequence_; }

  // Whether that has ended without having been done, on all ranks alike: calls that differ, or that a rank has no plan for.

  // Before a fork: the child may read this rank's results for ever, so their areas are never used again.
  void retire_leases() {
    for (auto& count : meetings_.block(meetings_.rank()).leases) {
      // One that nobody takes back. Dropping a lease at the same moment in another thread is harmless: the area stays
      // retired.
      if (count.load(std::memory_order_acquire) != 0) count.fetch_add(1, std::memory_order_acq_rel);
    }
  }

 private:
  std::vector<tg::Peer> peers_of(const std::vector<std::tuple<int, int>>& entries) const {
    if (entries.size() != mapping_->layout.ranks) refuse("A group has one entry for each of its ranks.");
    std::vector<tg::Peer> peers;
    for (const auto& [lifeline, pid] : entries) peers.push_back({lifeline, pid});
    return peers;
  }

  Ended run(const tg::Call& call, double seconds, const nb::object& warn) {
    for (const tg::Piece& piece : call.pieces_out) {
      if (piece.at > call.result_bytes || piece.nbytes > call.result_bytes - piece.at)
        refuse("A piece lies outside the results.");
    }
    // Without the GIL: the other ranks may take until the deadline to come.
    PyThreadState* state = PyEval_SaveThread();
    std::exception_ptr raised;  // what a signal handler or a warning has raised
    const auto note = [&raised](bool is_well) {
      if (!is_well) raised = std::make_exception_ptr(nb::python_error());
    };
    const auto with_gil = [this, &state](auto work) {
      restore(state);
      work();
      state = PyEval_SaveThread();
      // The child has the parent's stack, in the middle of an operation: it must not arrive, decide or wake in the
      // parent's name.
      if (getpid() != owner_) throw tg::Forked{};  // by a signal handler
    };
    tg::Patience patience;
    const double most_seconds = 1e9;  // what a clock can add without overflow
    patience.deadline = tg::Clock::now() + std::chrono::duration_cast<tg::Clock::duration>(
                                               std::chrono::duration<double>(std::min(seconds, most_seconds)));
    patience.interrupted = [&] {
      if (!raised) with_gil([&] { note(PyErr_CheckSignals() == 0); });
      return raised != nullptr;
    };
    if (!warn.is_none()) {
      patience.warn = [&] {
        with_gil([&] {
          if (raised) return;
          PyObject* const answer = PyObject_CallFunction(warn.ptr(), "O", nb::cast(meetings_.absent()).ptr());
          note(answer != nullptr);
          Py_XDECREF(answer);
        });
      };
    }
    Ended ended{{}, mapping_, nullptr};
    std::exception_ptr error;
    try {
      ended.outcome = operation_.run(++sequence_, call, patience);
    } catch (const tg::Forked&) {
      raised = nullptr;
      ended.outcome.decision = {sequence_, tg::Phase::broken, false, tg::Cause::none, 0, 0};
    } catch (...) {  // no memory, or what a test's hook raises: the others must not wait for this rank
      error = std::current_exception();
      // Where the operation has been decided, this changes nothing; else the others stop waiting at once.
      meetings_.decide(sequence_, tg::Event::spoil, tg::Cause::failed, meetings_.rank());
      meetings_.wake();
    }
    // Here, before Python runs again: a signal handler's call could otherwise choose this area for its own results.
    if (ended.outcome.decision.phase == tg::Phase::committed && call.wants_lease && ended.outcome.area < tg::most_areas) {
      ended.lease = std::make_shared<Lease>(mapping_, meetings_.block(meetings_.rank()).leases[ended.outcome.area]);
    }
    restore(state);
    if (error) std::rethrow_exception(error);
    if (raised) std::rethrow_exception(raised);
    return ended;
  }

  const pid_t owner_ = getpid();
  std::vector<int> descriptors_;  // of the other ranks' processes
  // Members below refer to those above, so the mapping goes last: the operation to areas and meetings, these to the
  // memory.
  const std::shared_ptr<Mapping> mapping_;
  const std::shared_ptr<tg::Arena> arena_;
  tg::Meetings meetings_;
  tg::Areas areas_;
  tg::Operation operation_;
  std::uint64_t sequence_ = 0;
};

int create_segment(std::size_t ranks, std::size_t result_bytes, std::size_t arena_bytes) {
  if (ranks < 1 || ranks > tg::most_ranks) refuse("A host has 1 to " + std::to_string(tg::most_ranks) + " ranks.");
  const int fd = tg::create_segment(tg::Layout::of(ranks, result_bytes, arena_bytes));
  if (fd < 0) raise_errno(errno);
  return fd;
}

nb::list bytes_of(const std::vector<std::string>& blobs) {
  nb::list made;
  for (const std::string& blob : blobs) made.append(nb::bytes(blob.data(), blob.size()));
  return made;
}

nb::list descriptors_of(const Ended& ended) {
  nb::list made;
  for (const tg::Descriptor& said : ended.outcome.descriptors) {
    made.append(nb::make_tuple(nb::bytes(said.kind, sizeof said.kind), said.is_refused != 0, said.replicas, said.plan != 0,
                               said.is_mixed != 0));
  }
  return made;
}

// Words of other ranks, which may end in the middle of a character.
nb::list texts_of(const std::vector<std::string>& texts) {
  nb::list made;
  for (const std::string& text : texts) {
    made.append(nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace")));
  }
  return made;
}

}  // namespace

void define_groups(nb::module_& module) {
  module.attr("HAS_SHARED_MEMORY") = true;
  module.attr("MOST_RANKS") = tg::most_ranks;
  module.attr("MOST_REPLICAS") = tg::most_replicas;
  module.attr("SMALL_BYTES") = tg::small_bytes;
  module.attr("BLOB_BYTES") = tg::blob_bytes;
  module.def("create_segment", &create_segment, nb::arg("ranks"), nb::arg("result_bytes"), nb::arg("arena_bytes"),
             "Return the descriptor of new shared memory for a group: sealed, without a name, allocated where it must be.");
  define_protocol(module);
  nb::class_<Form>(module, "GroupForm", "A kind of fold in a group: everything about a call but its memory.")
      .def(nb::init<const nb::bytes&, const std::string&, const std::vector<std::pair<int, std::size_t>>&, int, int, int,
                    bool>(),
           nb::arg("kind"), nb::arg("description"), nb::arg("leaves"), nb::arg("op"), nb::arg("accumulate"), nb::arg("level"),
           nb::arg("is_weighted") = false)
      .def_prop_ro(
          "kind",
          [](const Form& form) { return nb::bytes(reinterpret_cast<const char*>(form.call.kind), sizeof form.call.kind); })
      .def_prop_ro("description", [](const Form& form) { return form.call.description; })
      .def_prop_ro(
          "stream_bytes", [](const Form& form) { return form.call.stream_bytes; }, "Of one replica.")
      .def_prop_ro("result_bytes", [](const Form& form) { return form.call.result_bytes; })
      .def_prop_ro("results_at", &Form::results_at, "Where the result of each leaf begins in the result area.");
  nb::class_<Ended>(module, "GroupOutcome", "How an operation of a group ended.")
      .def_prop_ro("is_committed", [](const Ended& e) { return e.outcome.decision.phase == tg::Phase::committed; })
      .def_prop_ro("phase", [](const Ended& e) { return tg::phase_names[static_cast<int>(e.outcome.decision.phase)]; })
      .def_prop_ro("cause", [](const Ended& e) { return tg::cause_names[static_cast<int>(e.outcome.decision.cause)]; })
      .def_prop_ro("rank", [](const Ended& e) { return static_cast<int>(e.outcome.decision.rank); })
      .def_prop_ro("state",
                   [](const Ended& e) {
                     const char state = e.outcome.decision.state;
                     return state == 0 ? std::string() : std::string(1, state);
                   })
      .def_prop_ro("path", [](const Ended& e) { return tg::path_names[std::min(static_cast<int>(e.outcome.path), 4)]; })
      .def_prop_ro("is_leased", [](const Ended& e) { return e.lease != nullptr; })
      .def_prop_ro("missing_bytes", [](const Ended& e) { return e.outcome.missing_bytes; })
      .def_prop_ro("is_unplanned", [](const Ended& e) { return e.outcome.is_unplanned; })
      .def_prop_ro("descriptions", [](const Ended& e) { return texts_of(e.outcome.descriptions); })
      .def_prop_ro("blobs", [](const Ended& e) { return bytes_of(e.outcome.blobs); })
      .def_prop_ro("descriptors", &descriptors_of,
                   "Of each rank: kind, whether it refuses, replicas, whether it has a plan, whether leaves differ.")
      .def("view", &Ended::view, nb::arg("at"), nb::arg("shape"), nb::arg("dtype"),
           "Return a read-only array on the result area; without a lease it is right until the next operation.");
  nb::class_<HostGroup>(module, "HostGroup", "The ranks of one host, as one of them sees them.")
      .def(nb::init<int, std::size_t, std::size_t, std::size_t, std::size_t, const std::vector<std::tuple<int, int>>&, bool>(),
           nb::arg("fd"), nb::arg("rank"), nb::arg("ranks"), nb::arg("result_bytes"), nb::arg("arena_bytes"), nb::arg("peers"),
           nb::arg("spins"), "Own the descriptors of `peers`, by which ranks see each other end; `fd` stays the caller's.")
      .def("fold", &HostGroup::fold, nb::arg("form"), nb::arg("rows"), nb::arg("targets").none(), nb::arg("wants_lease"),
           nb::arg("weights"), nb::arg("weight_words"), nb::arg("plan"), nb::arg("seconds"), nb::arg("warn").none(),
           nb::arg("counts") = std::vector<std::vector<std::size_t>>{},
           "Fold the rows of all ranks into the one array of each target, where there is one; None, with nothing done "
           "and no\n"
           "other rank told, if targets cannot be written or share memory with another array of the call.")
      .def("place", &HostGroup::place, nb::arg("kind"), nb::arg("result_bytes"), nb::arg("sources"), nb::arg("targets"),
           nb::arg("wants_lease"), nb::arg("description"), nb::arg("seconds"), nb::arg("warn").none())
      .def("agree", &HostGroup::agree, nb::arg("kind"), nb::arg("blob"), nb::arg("description"), nb::arg("is_refused"),
           nb::arg("seconds"), nb::arg("warn").none())
      .def("empty", &HostGroup::empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("nbytes"))
      .def("leave", &HostGroup::leave, nb::arg("cause"))
      .def("retire_leases", &HostGroup::retire_leases)
      .def_prop_ro("sequence", &HostGroup::sequence);
}

#endif
