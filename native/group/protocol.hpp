// How ranks of one host agree: the decision word, its transitions, and the stages of an operation, as tables. The same
// tables are exported to Python, where the tests step through every interleaving of them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace treefold::group {

#define TREEFOLD_PHASES(X) X(open) X(moving) X(committed) X(refused) X(broken)
#define TREEFOLD_EVENTS(X) X(enter) X(match) X(commit) X(refuse) X(spoil)
#define TREEFOLD_CAUSES(X) X(none) X(lost) X(late) X(interrupted) X(left) X(failed)
#define TREEFOLD_PATHS(X) X(agree) X(small) X(staged) X(mapped) X(placed)
#define TREEFOLD_STAGES(X) \
  X(end)                   \
  X(publish) X(copy_in) X(meet_first) X(fold_all) X(fold) X(copy_next) X(meet) X(place) X(meet_commit) X(copy_out)

#define TREEFOLD_ENUMERATOR(name) name,
#define TREEFOLD_NAME(name) #name,
enum class Phase : std::uint8_t { TREEFOLD_PHASES(TREEFOLD_ENUMERATOR) };
enum class Event : std::uint8_t { TREEFOLD_EVENTS(TREEFOLD_ENUMERATOR) };
enum class Cause : std::uint8_t { TREEFOLD_CAUSES(TREEFOLD_ENUMERATOR) };
enum class Path : std::uint8_t { TREEFOLD_PATHS(TREEFOLD_ENUMERATOR) };
enum class Stage : std::uint8_t { TREEFOLD_STAGES(TREEFOLD_ENUMERATOR) };
constexpr const char* phase_names[] = {TREEFOLD_PHASES(TREEFOLD_NAME)};
constexpr const char* event_names[] = {TREEFOLD_EVENTS(TREEFOLD_NAME)};
constexpr const char* cause_names[] = {TREEFOLD_CAUSES(TREEFOLD_NAME)};
constexpr const char* path_names[] = {TREEFOLD_PATHS(TREEFOLD_NAME)};
constexpr const char* stage_names[] = {TREEFOLD_STAGES(TREEFOLD_NAME)};
#undef TREEFOLD_ENUMERATOR
#undef TREEFOLD_NAME

// What becomes of the decision word. There is no other transition; each is one compare-and-swap. `enter` begins the next
// operation, all others stay within one.
struct Transition {
  Phase from;
  Event event;
  Phase to;
};
// `committed`, `refused` and `broken` are final for their operation: no event but the next `enter` leaves the first
// two, and none leaves the last. So a verdict, once read, is what every rank will read, and a late accusation changes
// nothing.
constexpr Transition transitions[] = {
    {Phase::committed, Event::enter, Phase::open},  // by whoever comes first
    {Phase::refused, Event::enter, Phase::open},
    {Phase::open, Event::match, Phase::moving},      // by the last arriver of the first meeting
    {Phase::open, Event::commit, Phase::committed},  // the same, where one meeting is enough
    {Phase::open, Event::refuse, Phase::refused},    // the same: calls differ, or a rank refuses its own
    {Phase::moving, Event::commit, Phase::committed},  // by the last arriver of the last meeting
    {Phase::open, Event::spoil, Phase::broken},  // by whoever judges: a rank is dead, late, gone or interrupted
    {Phase::moving, Event::spoil, Phase::broken},
};

// What a rank does after the first meeting: `body` once per chunk but the last, then `tail`. Before it, every rank
// publishes its descriptor, and copies its first chunk in unless its values lie in shared memory.
struct Program {
  Path path;
  Stage body[4], tail[4];
};
constexpr Program programs[] = {
    {Path::agree, {}, {}},
    {Path::small, {}, {Stage::fold_all}},
    // Chunk c + 1 is copied in after chunk c is folded, into the other half of the staging memory: whoever is past the
    // meeting of chunk c + 1 knows that chunk c is folded everywhere, so that its half may be written again.
    {Path::staged, {Stage::fold, Stage::copy_next, Stage::meet}, {Stage::fold, Stage::meet_commit, Stage::copy_out}},
    {Path::mapped, {}, {Stage::fold, Stage::meet_commit, Stage::copy_out}},
    {Path::placed, {}, {Stage::place, Stage::meet_commit, Stage::copy_out}},
};
constexpr Stage prologue[] = {Stage::publish, Stage::copy_in, Stage::meet_first};

// The decision: what it says is what every rank returns. One word, so that no two ranks can read different halves of it.
// A rank may still read it when others have begun the next operation, but not the one after, because that one's first
// meeting needs this rank: so the word also keeps how the operation before ended.
struct Decision {
  std::uint64_t sequence;  // 40 bits
  Phase phase;
  bool was_refused;  // the operation before
  Cause cause;  // of `broken`, with the rank that is to blame
  std::uint8_t rank;
  char state;  // of its process, as the system shows it: 'T' is stopped; 0: unknown

  // All of it in 64 bits, because that is what one compare-and-swap can change. 40 bits of sequence last for 34 years
  // at a thousand operations per second.
  std::uint64_t word() const {
    return sequence << 24 | static_cast<std::uint64_t>(phase) << 21 | static_cast<std::uint64_t>(was_refused) << 20 |
           static_cast<std::uint64_t>(cause) << 16 | static_cast<std::uint64_t>(rank) << 8 | static_cast<std::uint8_t>(state);
  }
  // Whatever another process has written there, the result is one of the phases and one of the causes.
  static Decision of(std::uint64_t word) {
    const auto phase = std::min(word >> 21 & 7, static_cast<std::uint64_t>(Phase::broken));
    const auto cause = std::min(word >> 16 & 15, static_cast<std::uint64_t>(Cause::failed));
    return {word >> 24,
            static_cast<Phase>(phase),
            (word >> 20 & 1) != 0,
            static_cast<Cause>(cause),
            static_cast<std::uint8_t>(word >> 8),
            static_cast<char>(word)};
  }
};

// Returns whether the event has a meaning in that phase, and puts the phase that follows into `to`.
constexpr bool follows(Phase from, Event event, Phase& to) {
  for (const Transition& transition : transitions) {
    if (transition.from == from && transition.event == event) {
      to = transition.to;
      return true;
    }
  }
  return false;
}

}  // namespace treefold::group
