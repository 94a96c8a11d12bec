// One operation of a group on one host: publish, meet, compare, move in chunks, commit, copy out.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../elements.hpp"
#include "../exact.hpp"
#include "areas.hpp"
#include "meeting.hpp"

namespace treefold::group {

// One array in every replica of a call. Contributions are staged one after the other, each at a multiple of 64 bytes, as
// one stream; results lie in the result area in the same manner.
struct Leaf {
  Loop loop;
  std::size_t length;        // elements
  std::size_t source_bytes;  // of one element
  std::size_t target_bytes;
  std::size_t at, result_at;  // in the two streams
};

// A part of the result area, and private memory that it is copied from or to.
struct Piece {
  std::size_t at;  // in the area
  std::byte* memory;
  std::size_t nbytes;
};

// A part of a stream in bytes, or of a leaf in elements.
struct Span {
  std::size_t begin, end;
};

// A call as this rank makes it. Calls of several ranks match if their `kind` is the same.
struct Call {
  unsigned char kind[24] = {};
  std::uint64_t plan = 0;             // of a fold
  std::vector<Leaf> leaves;           // of a fold; none in other calls
  std::size_t stream_bytes = 0, result_bytes = 0;
  bool is_refused = false, wants_lease = false;
  std::size_t replicas = 0;           // of a fold, here: the most that a leaf has
  std::vector<const std::byte*> sources;  // leaf by leaf, replica by replica; null where a leaf has fewer
  bool is_mixed = false;              // some have
  // Rank by rank, leaf by leaf, of a fold for which some rank is mixed: how many contributions there are.
  std::vector<std::vector<std::size_t>> counts;
  // Of all replicas of the group, if weighted: whole numbers, as Weights has them; those of weight 0 are left out.
  std::vector<std::uint32_t> weights;
  std::size_t weight_words = 1;       // of each
  std::vector<Piece> pieces_in, pieces_out;  // what is copied into the area, if it is not folded, and out of it
  std::string description, blob;        // what the others are told, of a call that only agrees or is refused
};

struct Outcome {
  Decision decision{};
  Path path = Path::agree;
  std::uint32_t area = most_areas;
  std::size_t area_offset = 0, missing_bytes = 0;
  bool is_unplanned = false;
  // By rank, of a call that only agrees or was refused.
  std::vector<Descriptor> descriptors{};
  std::vector<std::string> descriptions{}, blobs{};
};

// Contributions of at most so many bytes are folded by every rank for itself, after one meeting.
constexpr std::size_t small_bytes = std::size_t{16} << 10;

// Called around every stage, and at meetings that decide also between the decision and telling the others: by tests that
// want to see what the others do when this rank ends there.
enum class Moment { before, decided, after };
using StageHook = void (*)(Stage stage, Moment moment, std::uint64_t sequence, std::size_t chunk);
void set_stage_hook(StageHook hook);

class Operation {
 public:
  Operation(Meetings& meetings, Areas& areas, std::byte* base, const Layout& layout);

  // Runs the call as operation `sequence`, which all ranks run. Where it is not committed, nothing was copied out.
  Outcome run(std::uint64_t sequence, const Call& call, const Patience& patience);

 private:
  struct Lane {
    std::size_t rank, index;
  };
  struct Run {
    const std::uint64_t sequence;
    const Call& call;
    const Patience& patience;
    std::size_t lane_bytes = 0;  // of this rank's staging, for each of its replicas
    bool is_mapped = false;
    Choice choice{};
    // Copies, taken once after the first meeting, so that what was checked is what is used.
    std::vector<Descriptor> descriptors{};
    std::vector<std::vector<std::uint64_t>> offsets{};  // by rank, where its values are mapped: leaf by leaf
    std::size_t lane_count = 0;                         // of all replicas
    std::vector<Lane> lanes{};                          // the contributions, in replica order
    std::optional<Weights> weights{};
    Arithmetic arithmetic{};
    std::size_t chunk = 0;
    std::unique_ptr<std::byte[]> folded{};  // of a small call: made while the call can still be given up
    bool is_unfit = false;                  // what the others say of a call that is committed cannot be
  };

  // Once a stage says no, nothing more is touched: other ranks may already be in their next operation.
  bool perform(Stage stage, Run& run);
  // Plain stores, which the arrival at the first meeting releases. They go to the half of the block that nobody reads
  // any more: its contents, of two operations ago, were read before their readers arrived at the first meeting of the
  // last one.
  void publish(Run& run) const;
  bool offsets_of(const Call& call, std::vector<std::uint64_t>& offsets) const;
  // A replica that a leaf lacks keeps its lane, so that lanes begin at the same places for every leaf.
  void copy_in(const Run& run, std::size_t chunk, std::size_t chunk_begin, Span part) const;
  void copy_next(const Run& run) const;
  void pass(const Run& run, Stage stage, Moment moment) const;
  // If what the others say cannot be: a call that this one meeting decides is committed already, and spoiling it
  // changes nothing; `is_unfit` then fails it on this rank.
  bool meet_first(Run& run);
  // The last arriver commits before it tells the others: whatever stops it in between, they find the operation
  // committed.
  bool meet_commit(const Run& run);
  // Runs while all others wait in the meeting, so it has the tables to itself. It copies what it compares, because a
  // rank that keeps to no rule may write there meanwhile; and it writes the choice before the decision, because a rank
  // that finds a verdict without waiting for `met` must find the choice that belongs to it.
  void choose(Run& run);
  bool suits(const Run& run) const;
  bool find_lanes(Run& run) const;
  bool has_counts(const Run& run) const;
  bool read_offsets(Run& run, std::size_t rank) const;
  // Slices of ranks are disjoint and begin at cache lines: all write the results side by side without a lock. Streamed
  // writes are fenced by the loop itself, so the next arrival releases them, too.
  void fold(const Run& run, Span part, std::byte* results) const;
  bool is_staged(const Run& run, const Lane& lane) const;
  const std::byte* source_of(const Run& run, const Lane& lane, std::size_t leaf) const;
  Span chunk_of(const Run& run, std::size_t chunk) const;
  // A half is written again only after a meeting that follows its last read. Chunk c + 2 is copied in after the meeting
  // by which every rank has folded chunk c. A small call folds behind its only meeting, so its half may still be read
  // when the next operation begins: that one uses the other half, and its first meeting ends the reads.
  std::byte* half(const Run& run, std::size_t rank, std::size_t chunk) const;
  // After the last meeting: all slices are written, and no rank reads contributions where they lie any more, so targets
  // may be among them. The area is written again after the next operation's first meeting, at which this rank arrives
  // when done. A small call has one meeting only; what others still read then is this rank's staging, never the
  // caller's arrays.
  void copy_out(const Call& call, const std::byte* results) const;
  void tell(const Run& run, Outcome& outcome) const;

  Meetings& meetings_;
  Areas& areas_;
  std::byte* const base_;
  const Layout layout_;
};

}  // namespace treefold::group
