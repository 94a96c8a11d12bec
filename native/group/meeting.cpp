#include "meeting.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>

namespace treefold::group {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Spinning longer than a wake-up takes gains nothing.
constexpr Clock::duration spin_time = microseconds(30);
// Where ranks share cores, those that are awaited run at once in the time that this one gives away: no sleep, no wake-up.
// But other programs take whole slices of it, and go on when the meeting is over. After each slice that is lost so, twice
// as many meetings are slept through.
constexpr Clock::duration yield_time = microseconds(100), slice_time = milliseconds(1);
constexpr std::uint64_t fewest_asleep = 32, most_asleep = 8192;
// Sleep is cut into slices, between which a rank looks whether the others live: short ones while a meeting is likely to
// be near, longer ones later. Two of the longest, and a look, fit into the 100 ms that a deadline may be late.
constexpr Clock::duration shortest_slice = milliseconds(1), longest_slice = milliseconds(16);
constexpr Clock::duration time_to_warn = std::chrono::seconds(30);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  // Not FUTEX_PRIVATE_FLAG: the word is shared between processes.
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

bool has_ended(const Peer& peer) {
  pollfd look{peer.lifeline, 0, 0};  // that nobody holds the other end is told unasked
  return poll(&look, 1, 0) > 0 && (look.revents & POLLHUP) != 0;
}

}  // namespace

Meetings::Meetings(std::byte* base, const Layout& layout, std::size_t rank, std::vector<Peer> peers, bool spins)
    : base_(base), layout_(layout), rank_(rank), peers_(std::move(peers)), spins_(spins) {}

Block& Meetings::block(std::size_t rank) const {
  return *reinterpret_cast<Block*>(base_ + layout_.blocks() + rank * Layout::block_bytes);
}

bool Meetings::decide(std::uint64_t sequence, Event event, Cause cause, std::size_t rank, char state) {
  std::atomic<std::uint64_t>& decision = control().decision;
  // Acquire, and release in the exchange: whoever reads a verdict sees what was written before it was given, such as
  // the choice.
  std::uint64_t seen = decision.load(std::memory_order_acquire);
  for (;;) {
    const Decision now = Decision::of(seen);
    const bool begins = event == Event::enter;
    Phase to{};
    // The sequence is part of the word that is exchanged, so an accusation that was delayed until the next operation
    // fails here or in the exchange (there is no ABA: the sequence never goes back).
    if (now.sequence != sequence - begins || !follows(now.phase, event, to)) return false;
    const bool was_refused = begins ? now.phase == Phase::refused : now.was_refused;
    const Decision next{sequence, to, was_refused, cause, static_cast<std::uint8_t>(rank), state};
    if (decision.compare_exchange_weak(seen, next.word(), std::memory_order_acq_rel)) return true;
  }
}

Decision Meetings::outcome(std::uint64_t sequence) const {
  Decision now = Decision::of(control().decision.load(std::memory_order_acquire));
  if (now.sequence == sequence) return now;
  // The next operation has begun, so this one has ended, and not by a broken group.
  if (now.sequence == sequence + 1) {
    return {sequence, now.was_refused ? Phase::refused : Phase::committed, false, Cause::none, 0, 0};
  }
  if (now.phase == Phase::broken) return now;  // an operation before this one broke the group
  // No rank that keeps to the protocol writes this.
  return {sequence, Phase::broken, false, Cause::failed, static_cast<std::uint8_t>(rank_), 0};
}

bool Meetings::enter(std::uint64_t sequence) {
  decide(sequence, Event::enter);  // or another rank has
  return Decision::of(control().decision.load(std::memory_order_acquire)).phase != Phase::broken;
}

bool Meetings::meet(std::uint64_t sequence, const std::function<void()>& complete, const Patience& patience) {
  // All ranks make the same meetings in the same order, so each can count them by itself. `arrived` is never set back:
  // that would race with whoever is already at the next meeting.
  const std::uint64_t number = ++meetings_;
  const auto low = static_cast<std::uint32_t>(number);
  // Before the count: if this rank stops between the two, absent() still names it.
  block(rank_).step.store(2 * number - 1, std::memory_order_release);
  // Release, for what this rank has written for the others; acquire, for what they have. Read-modify-writes carry on
  // each other's releases, so the last to arrive has everybody's writes behind it, and `met` hands them on.
  if (control().arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == number * layout_.ranks) {
    complete();
    control().met_at.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    // With `sleepers` it is Dekker's pattern: here met, then sleepers; in sleep() sleepers, then met. Sequentially
    // consistent, both: with release and acquire, each side could miss the other, and a rank would sleep for its whole
    // slice.
    control().met.store(low, std::memory_order_seq_cst);
    wake();
  } else {
    // Not by the last arriver, which has to tell the others first: if it stops before that, it counts as absent.
    block(rank_).step.store(2 * number, std::memory_order_release);
    const Clock::time_point begin = Clock::now();
    Clock::duration slice = shortest_slice;
    bool has_warned = !patience.warn;
    while (!is_over(low)) {
      if (stays_awake(low, begin)) continue;
      sleep(low, std::min(slice, std::max<Clock::duration>(patience.deadline - Clock::now(), microseconds(50))));
      // The last arriver may have ended, or been stopped, when it had decided and before it told the others.
      if (is_over(low) || is_final(outcome(sequence))) break;
      judge(sequence, patience);
      slice = std::min(2 * slice, longest_slice);
      if (!has_warned && Clock::now() - begin > time_to_warn) {
        has_warned = true;
        patience.warn();
      }
    }
  }
  return outcome(sequence).phase != Phase::broken;
}

// Spins a little, or gives way to others; returns false when it is time to sleep.
bool Meetings::stays_awake(std::uint32_t number, Clock::time_point begin) {
  if (Clock::now() - begin >= (spins_ ? spin_time : yield_time)) return false;
  if (spins_) {
    pause();
    return true;
  }
  if (meetings_ < yields_from_) return false;
  sched_yield();
  // Not the time that it was given away, in which ranks that are awaited may have worked. The next meeting, which would
  // write another time, is not over without this rank. Read after is_over(), whose acquire makes it that of this one.
  const auto since = [this] {
    return Clock::now().time_since_epoch() - Clock::duration(control().met_at.load(std::memory_order_relaxed));
  };
  if (is_over(number) && since() >= slice_time) {
    // Grows by doubling and falls by one: a core that is lost now and then costs little, one that is lost often is left
    // alone.
    asleep_ = std::clamp(2 * asleep_, fewest_asleep, most_asleep);
    yields_from_ = meetings_ + asleep_;
  } else {
    asleep_ -= asleep_ > 0;
  }
  return true;
}

bool Meetings::is_over(std::uint32_t number) const {
  // By the sign of the difference, because 32 bits wrap: ranks are never more than a meeting apart. The futex needs 32
  // bits. Acquire pairs with the store in meet(): all that any rank wrote before it arrived is readable from here on.
  return static_cast<std::int32_t>(control().met.load(std::memory_order_acquire) - number) >= 0;
}

void Meetings::judge(std::uint64_t sequence, const Patience& patience) {
  if (patience.interrupted && patience.interrupted()) {
    decide(sequence, Event::spoil, Cause::interrupted, rank_);
    // A rank that ended after this operation was decided does no harm: a final decision cannot be spoiled any more.
  } else if (const std::size_t dead = dead_rank(); dead < layout_.ranks) {
    // The reason comes from memory that another process wrote, so it is brought into the known range like a decision.
    const std::uint32_t departure = block(dead).departure.load(std::memory_order_acquire);
    const Cause said = Decision::of(std::uint64_t{departure & 15} << 16).cause;
    decide(sequence, Event::spoil, said == Cause::none ? Cause::lost : said, dead);
  } else if (Clock::now() >= patience.deadline) {
    const std::vector<std::size_t> missing = absent();
    if (!missing.empty()) {
      decide(sequence, Event::spoil, Cause::late, missing[0], state_of(missing[0]));
    } else if (!is_over(static_cast<std::uint32_t>(meetings_))) {
      // All have come, and still it does not end: somebody has written into the counters.
      decide(sequence, Event::spoil, Cause::failed, rank_);
    }
  } else {
    return;
  }
  wake();
}

// Returns a rank whose process has ended or that has closed the group, this one too, by another thread while it waits; the
// number of ranks if there is none.
std::size_t Meetings::dead_rank() const {
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    // Before the lifeline: a rank that closes the group says why, and its process may end right after that.
    if (block(rank).departure.load(std::memory_order_acquire) != 0) return rank;
    if (rank != rank_ && peers_[rank].lifeline >= 0 && has_ended(peers_[rank])) return rank;
  }
  return layout_.ranks;
}

// Returns the ranks that do not wait where this rank waits: they have not come, or came last and stopped before they
// told the others.
std::vector<std::size_t> Meetings::absent() const {
  std::vector<std::size_t> found;
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    if (rank != rank_ && block(rank).step.load(std::memory_order_acquire) < 2 * meetings_) found.push_back(rank);
  }
  return found;
}

// Returns the state letter of a rank's process, such as 'T' for stopped; 0 if this process cannot see it.
char Meetings::state_of(std::size_t rank) const {
  if (peers_[rank].pid == 0) return 0;
  char line[512] = {};
  std::FILE* const file = std::fopen(("/proc/" + std::to_string(peers_[rank].pid) + "/stat").c_str(), "re");
  if (file == nullptr) return 0;
  const bool has_line = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  // The state follows the name, which is in brackets and may contain brackets itself.
  const std::string text(has_line ? line : "");
  const std::size_t bracket = text.rfind(") ");
  return bracket == std::string::npos || bracket + 2 >= text.size() ? '\0' : text[bracket + 2];
}

void Meetings::wake() {
  // Without sleepers no system call: most meetings of spinning ranks end so. After a verdict `met` is unchanged, so
  // whoever is just falling asleep misses this call, and looks again when its slice of 16 ms at most is over.
  if (control().sleepers.load(std::memory_order_seq_cst) != 0) futex(control().met, FUTEX_WAKE, 0x7fffffff, nullptr);
}

void Meetings::sleep(std::uint32_t number, Clock::duration most) {
  Control& shared = control();
  // Announce, then look: the other half of the pattern in meet().
  shared.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = shared.met.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(seen - number) < 0) {
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(most).count();
    const timespec timeout{static_cast<std::time_t>(nanoseconds / 1'000'000'000),
                           static_cast<long>(nanoseconds % 1'000'000'000)};
    // The kernel compares the word with `seen` before it sleeps, so a meeting that ends in between is not missed.
    futex(shared.met, FUTEX_WAIT, seen, &timeout);
  }
  shared.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace treefold::group
