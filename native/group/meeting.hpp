// Meetings of the ranks of one host, and who is to blame when one does not happen.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "segment.hpp"

namespace treefold::group {

using Clock = std::chrono::steady_clock;

// Another rank's process.
struct Peer {
  int lifeline = -1;  // a pipe whose other end it holds, which closes when it ends or becomes another program; -1: this rank
  int pid = 0;        // as this process sees it; 0: it does not
};

// How this rank waits. `interrupted` is called from time to time while it sleeps; once it returns true, the rank gives up.
struct Patience {
  Clock::time_point deadline;
  std::function<bool()> interrupted;  // throws Forked in a child that a signal handler has made
  std::function<void()> warn;  // called once, after long waiting; the ranks that are absent can be asked for then
};

// Thrown in a process that was forked from a rank in the middle of an operation: it is no rank, and does nothing more.
struct Forked {};

class Meetings {
 public:
  Meetings(std::byte* base, const Layout& layout, std::size_t rank, std::vector<Peer> peers, bool spins);

  // Begins operation `sequence`. Returns false if the group is broken.
  bool enter(std::uint64_t sequence);

  // Meets all ranks. The last to arrive calls `complete` before the others go on. Returns false if the group is broken
  // instead; whether operation `sequence` is over is then, as always, what outcome() says.
  bool meet(std::uint64_t sequence, const std::function<void()>& complete, const Patience& patience);

  // Changes the decision by an event of operation `sequence`. Returns false, and changes nothing, where the event has no
  // meaning any more.
  bool decide(std::uint64_t sequence, Event event, Cause cause = Cause::none, std::size_t rank = 0, char state = 0);

  // Returns how operation `sequence`, this rank's last, stands; once is_final() holds for it, it stays so.
  Decision outcome(std::uint64_t sequence) const;
  static bool is_final(const Decision& decision) { return decision.phase != Phase::open && decision.phase != Phase::moving; }

  std::vector<std::size_t> absent() const;
  Control& control() const { return *reinterpret_cast<Control*>(base_); }
  Block& block(std::size_t rank) const;
  std::size_t ranks() const { return layout_.ranks; }
  std::size_t rank() const { return rank_; }
  void wake();

 private:
  bool is_over(std::uint32_t number) const;
  bool stays_awake(std::uint32_t number, Clock::time_point begin);
  void judge(std::uint64_t sequence, const Patience& patience);
  std::size_t dead_rank() const;
  char state_of(std::size_t rank) const;
  void sleep(std::uint32_t number, Clock::duration most);

  std::byte* const base_;
  const Layout layout_;
  const std::size_t rank_;
  const std::vector<Peer> peers_;
  const bool spins_;
  std::uint64_t meetings_ = 0;     // that this rank has begun
  std::uint64_t yields_from_ = 0;  // the meeting from which on it gives way before it sleeps
  std::uint64_t asleep_ = 0;       // for how many meetings it does not, when it has lost a slice
};

}  // namespace treefold::group
