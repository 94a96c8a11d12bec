#include "operation.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "../floating_mode.hpp"
#include "copy.hpp"

namespace treefold::group {

namespace {

constexpr std::size_t line = 64;
constexpr std::size_t most_alignment = 8;  // of an element, complex ones included

StageHook stage_hook = nullptr;

// The part of a leaf that lies in a part of the stream, in elements.
Span elements_of(const Leaf& leaf, Span part) {
  const std::size_t nbytes = leaf.length * leaf.source_bytes;
  const std::size_t from = std::max(part.begin, leaf.at), to = std::min(part.end, leaf.at + nbytes);
  if (from >= to) return {0, 0};
  return {(from - leaf.at) / leaf.source_bytes, (to - leaf.at) / leaf.source_bytes};
}

// The bytes of a chunk that one rank folds.
Span slice_of(Span chunk, std::size_t rank, std::size_t ranks) {
  const std::size_t share = ((chunk.end - chunk.begin + ranks - 1) / ranks + line - 1) / line * line;
  return {std::min(chunk.begin + rank * share, chunk.end), std::min(chunk.begin + (rank + 1) * share, chunk.end)};
}

// Returns the first leaf that reaches beyond `begin` in the stream; leaves follow each other there.
std::size_t first_leaf(const std::vector<Leaf>& leaves, std::size_t begin) {
  const auto found = std::partition_point(
      leaves.begin(), leaves.end(), [begin](const Leaf& leaf) { return leaf.at + leaf.length * leaf.source_bytes <= begin; });
  return static_cast<std::size_t>(found - leaves.begin());
}

std::size_t lane_bytes_of(const Layout& layout, std::size_t replicas) {
  return layout.half_bytes / std::max<std::size_t>(replicas, 1) / line * line;
}

}  // namespace

void set_stage_hook(StageHook hook) { stage_hook = hook; }

Operation::Operation(Meetings& meetings, Areas& areas, std::byte* base, const Layout& layout)
    : meetings_(meetings), areas_(areas), base_(base), layout_(layout) {}

Outcome Operation::run(std::uint64_t sequence, const Call& call, const Patience& patience) {
  Run run{sequence, call, patience};
  bool goes_on = meetings_.enter(sequence);
  for (const Stage stage : prologue) goes_on = goes_on && perform(stage, run);
  if (goes_on) {
    const Program* const found = std::find_if(std::begin(programs), std::end(programs),
                                              [&run](const Program& program) { return program.path == run.choice.path; });
    const std::size_t chunk_bytes = run.choice.chunk_bytes;
    const std::size_t chunks = chunk_bytes == 0 ? 1 : (call.stream_bytes + chunk_bytes - 1) / chunk_bytes;
    for (; goes_on && run.chunk + 1 < chunks; ++run.chunk) {
      for (const Stage stage : found->body) goes_on = goes_on && perform(stage, run);
    }
    for (const Stage stage : found->tail) goes_on = goes_on && perform(stage, run);
  }
  // From the word that all read, whatever this rank saw on its way: one that was stopped after the commit returns it as
  // well.
  Outcome outcome{meetings_.outcome(sequence)};
  if (run.is_unfit && outcome.decision.phase == Phase::committed) {
    outcome.decision = {sequence, Phase::broken, false, Cause::failed, static_cast<std::uint8_t>(meetings_.rank()), 0};
  }
  outcome.path = run.choice.path;
  outcome.area = run.choice.area;
  outcome.area_offset = run.choice.area_offset;
  outcome.missing_bytes = run.choice.missing_bytes;
  outcome.is_unplanned = run.choice.is_unplanned != 0;
  tell(run, outcome);
  return outcome;
}

bool Operation::perform(Stage stage, Run& run) {
  if (stage == Stage::end) return true;
  pass(run, stage, Moment::before);
  // Only where the choice has an area: elsewhere nobody has looked at what stands there.
  const auto results = [this, &run] { return base_ + run.choice.area_offset; };
  bool goes_on = true;
  switch (stage) {
    case Stage::publish: publish(run); break;
    case Stage::copy_in:
      // How much the chunk will hold is not agreed yet: as much as this rank has room for.
      if (!run.is_mapped) copy_in(run, 0, 0, {0, std::min(run.lane_bytes, run.call.stream_bytes)});
      // Before the meeting that commits a small call: nobody could be told of a failure to allocate after it.
      if (run.call.stream_bytes <= small_bytes) run.folded = std::make_unique<std::byte[]>(run.call.result_bytes + line);
      break;
    case Stage::meet_first: goes_on = meet_first(run); break;
    case Stage::fold_all: {
      // Into memory of its own first: targets may be among the sources, and pieces may be parts of leaves.
      fold(run, {0, run.call.stream_bytes}, run.folded.get());
      copy_out(run.call, run.folded.get());
      break;
    }
    case Stage::fold: fold(run, slice_of(chunk_of(run, run.chunk), meetings_.rank(), layout_.ranks), results()); break;
    case Stage::copy_next: copy_next(run); break;
    case Stage::meet: goes_on = meetings_.meet(run.sequence, [] {}, run.patience); break;
    case Stage::place:
      for (const Piece& piece : run.call.pieces_in) std::memcpy(results() + piece.at, piece.memory, piece.nbytes);
      break;
    case Stage::meet_commit: goes_on = meet_commit(run); break;
    case Stage::copy_out: copy_out(run.call, results()); break;
    case Stage::end: break;
  }
  pass(run, stage, Moment::after);
  return goes_on;
}

// Half of a rank's staging memory. Two neighbouring chunks, and the first chunks of two neighbouring operations, lie in
// different halves.
std::byte* Operation::half(const Run& run, std::size_t rank, std::size_t chunk) const {
  return base_ + layout_.staging() + (2 * rank + ((run.sequence + chunk) & 1)) * layout_.half_bytes;
}

// Puts the places of the call's values in this rank's arena into `offsets`; false if one lies elsewhere.
bool Operation::offsets_of(const Call& call, std::vector<std::uint64_t>& offsets) const {
  if (call.sources.empty() || call.sources.size() * sizeof(std::uint64_t) > blob_bytes) return false;
  const std::byte* const begin = base_ + layout_.arena(meetings_.rank());
  for (std::size_t index = 0; index < call.sources.size(); ++index) {
    const Leaf& leaf = call.leaves[index / call.replicas];
    const std::byte* const source = call.sources[index];
    if (source < begin || source + leaf.length * leaf.source_bytes > begin + layout_.arena_bytes) return false;
    offsets.push_back(static_cast<std::uint64_t>(source - begin));
  }
  return true;
}

void Operation::publish(Run& run) const {
  const Call& call = run.call;
  Block& block = meetings_.block(meetings_.rank());
  const std::size_t parity = run.sequence & 1;
  std::vector<std::uint64_t> offsets;
  run.lane_bytes = lane_bytes_of(layout_, call.replicas);
  run.is_mapped = call.stream_bytes > small_bytes && offsets_of(call, offsets);
  Descriptor descriptor{};
  descriptor.sequence = run.sequence;
  descriptor.plan = call.plan;
  std::memcpy(descriptor.kind, call.kind, sizeof descriptor.kind);
  descriptor.is_refused = call.is_refused;
  descriptor.is_mapped = run.is_mapped;
  descriptor.wants_lease = call.wants_lease;
  descriptor.is_mixed = call.is_mixed;
  descriptor.replicas = static_cast<std::uint32_t>(call.replicas);
  descriptor.description_length = static_cast<std::uint32_t>(std::min(call.description.size(), description_bytes));
  std::memcpy(block.descriptions[parity], call.description.data(), descriptor.description_length);
  const void* const blob = run.is_mapped ? static_cast<const void*>(offsets.data()) : call.blob.data();
  const std::size_t length = run.is_mapped ? offsets.size() * sizeof offsets[0] : std::min(call.blob.size(), blob_bytes);
  descriptor.blob_length = static_cast<std::uint32_t>(length);
  if (length != 0) std::memcpy(block.blobs[parity], blob, length);
  block.descriptors[parity] = descriptor;
}

// Copies [begin, end) of the stream of every replica here into its lane, for a chunk that begins at `chunk_begin`.
void Operation::copy_in(const Run& run, std::size_t chunk, std::size_t chunk_begin, Span part) const {
  const Call& call = run.call;
  std::byte* const staging = half(run, meetings_.rank(), chunk);
  for (std::size_t i = first_leaf(call.leaves, part.begin); i < call.leaves.size() && call.leaves[i].at < part.end; ++i) {
    const Leaf& leaf = call.leaves[i];
    const Span elements = elements_of(leaf, part);
    const std::size_t from = elements.begin * leaf.source_bytes, nbytes = elements.end * leaf.source_bytes - from;
    if (nbytes == 0) continue;
    for (std::size_t replica = 0; replica < call.replicas; ++replica) {
      const std::byte* const source = call.sources[i * call.replicas + replica];
      if (source == nullptr) continue;
      std::memcpy(staging + replica * run.lane_bytes + (leaf.at + from - chunk_begin), source + from, nbytes);
    }
  }
}

// Copies the chunk after the one at hand in, but for this rank's own slice of it, which is read where it lies.
void Operation::copy_next(const Run& run) const {
  if (run.is_mapped) return;
  const Span next = chunk_of(run, run.chunk + 1), own = slice_of(next, meetings_.rank(), layout_.ranks);
  copy_in(run, run.chunk + 1, next.begin, {next.begin, own.begin});
  copy_in(run, run.chunk + 1, next.begin, {own.end, next.end});
}

bool Operation::meet_first(Run& run) {
  const auto complete = [this, &run] { choose(run); };
  if (!meetings_.meet(run.sequence, complete, run.patience)) return false;
  if (meetings_.outcome(run.sequence).phase == Phase::refused) {
    run.choice = meetings_.control().choice[run.sequence & 1];
    return false;
  }
  // Copied once: what is looked at is what is used, whatever another process writes there in the meantime.
  run.choice = meetings_.control().choice[run.sequence & 1];
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    run.descriptors.push_back(meetings_.block(rank).descriptors[run.sequence & 1]);
  }
  if (suits(run) && find_lanes(run)) return true;
  run.is_unfit = true;
  meetings_.decide(run.sequence, Event::spoil, Cause::failed, meetings_.rank());
  return false;
}

bool Operation::meet_commit(const Run& run) {
  const auto complete = [this, &run] {
    meetings_.decide(run.sequence, Event::commit);
    pass(run, Stage::meet_commit, Moment::decided);
  };
  return meetings_.meet(run.sequence, complete, run.patience);
}

void Operation::pass(const Run& run, Stage stage, Moment moment) const {
  if (stage_hook) stage_hook(stage, moment, run.sequence, run.chunk);
}

// What the last arriver of the first meeting does for all: it compares the calls and chooses how they are run.
void Operation::choose(Run& run) {
  Choice choice{Path::agree, most_areas, layout_.scratch(), 0, 0, 0};
  std::size_t chunk_bytes = lane_bytes_of(layout_, 1);
  const bool folds = !run.call.leaves.empty(), places = !folds && run.call.result_bytes != 0;
  bool matches = true, is_planned = !folds || run.call.plan != 0, is_mapped = true, is_kept = false;
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    const Descriptor said = meetings_.block(rank).descriptors[run.sequence & 1];
    matches = matches && !said.is_refused && said.sequence == run.sequence &&
              std::memcmp(said.kind, run.call.kind, sizeof said.kind) == 0;
    is_planned = is_planned && said.plan == run.call.plan;
    is_mapped = is_mapped && said.is_mapped;
    is_kept = is_kept || said.wants_lease;
    // The rank with the most replicas has the shortest lanes, and all ranks must cut alike.
    chunk_bytes = std::min(chunk_bytes, lane_bytes_of(layout_, said.replicas));
  }
  const bool is_small = folds && run.call.stream_bytes <= std::min(small_bytes, chunk_bytes);
  if (is_small) choice.path = Path::small;
  if (folds && !is_small) choice.path = is_mapped ? Path::mapped : Path::staged;
  if (places) choice.path = Path::placed;
  if (choice.path == Path::staged) choice.chunk_bytes = chunk_bytes;
  const bool needs_area = choice.path != Path::agree && !is_small;
  choice.is_unplanned = matches && !is_planned;
  matches = matches && is_planned;
  if (matches && needs_area) matches = areas_.choose(run.call.result_bytes, is_kept, choice);
  meetings_.control().choice[run.sequence & 1] = choice;
  meetings_.decide(run.sequence, !matches ? Event::refuse : needs_area ? Event::match : Event::commit);
  pass(run, Stage::meet_first, Moment::decided);
}

// Tells whether a choice can be followed: a process that writes into shared memory may write anything.
bool Operation::suits(const Run& run) const {
  const Choice& choice = run.choice;
  const Call& call = run.call;
  const bool folds = !call.leaves.empty();
  // Results lie below the arenas: an offset beyond would let one rank make another overwrite a third one's arrays.
  const std::size_t end = layout_.arena(0);
  switch (choice.path) {
    case Path::agree: return !folds && call.result_bytes == 0;
    case Path::small: return folds && call.stream_bytes <= std::min(small_bytes, run.lane_bytes);
    case Path::staged:
      if (!folds || choice.chunk_bytes < line || choice.chunk_bytes % line != 0) return false;
      break;
    case Path::mapped:
      if (!folds || !run.is_mapped) return false;
      break;
    case Path::placed:
      if (folds) return false;
      break;
    default: return false;
  }
  return choice.area_offset % page_bytes == 0 && choice.area_offset >= layout_.scratch() && choice.area_offset <= end &&
         call.result_bytes <= end - choice.area_offset && choice.area <= most_areas;
}

// Tells whether what this rank was told of mixed leaves fits what all ranks say now; nothing is told where none are.
bool Operation::has_counts(const Run& run) const {
  const auto& counts = run.call.counts;
  if (counts.empty()) {
    return std::none_of(run.descriptors.begin(), run.descriptors.end(),
                        [](const Descriptor& said) { return said.is_mixed != 0; });
  }
  if (counts.size() != layout_.ranks || !run.call.weights.empty()) return false;
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    const std::size_t most = run.descriptors[rank].replicas;
    if (counts[rank].size() != run.call.leaves.size()) return false;
    for (const std::size_t count : counts[rank]) {
      if (count < 1 || count > most) return false;
    }
  }
  return true;
}

// Puts every rank's contributions into replica order. Returns false if what a rank says of them cannot be.
bool Operation::find_lanes(Run& run) const {
  if (run.call.leaves.empty()) return true;
  if (!has_counts(run)) return false;
  run.offsets.resize(layout_.ranks);
  std::vector<std::uint32_t> words;
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    const Descriptor& said = run.descriptors[rank];
    if (said.replicas > most_replicas) return false;
    if (rank == meetings_.rank() && said.replicas != run.call.replicas) return false;
    if (run.choice.chunk_bytes > lane_bytes_of(layout_, said.replicas)) return false;
    if (run.choice.path == Path::small && run.call.stream_bytes > lane_bytes_of(layout_, said.replicas)) return false;
    if (run.choice.path == Path::mapped || (said.is_mapped && rank != meetings_.rank())) {
      if (!read_offsets(run, rank)) return false;
    }
    for (std::size_t index = 0; index < said.replicas; ++index) {
      const std::size_t number = run.lane_count++;
      if (const std::size_t each = run.call.weight_words; !run.call.weights.empty()) {
        if (number >= run.call.weights.size() / each) return false;
        const auto begin = run.call.weights.begin() + static_cast<std::ptrdiff_t>(number * each);
        const auto end = begin + static_cast<std::ptrdiff_t>(each);
        if (std::all_of(begin, end, [](std::uint32_t word) { return word == 0; })) continue;
        words.insert(words.end(), begin, end);
      }
      run.lanes.push_back({rank, index});
    }
  }
  run.arithmetic.count = run.lanes.size();
  if (!words.empty()) run.arithmetic.weights = &run.weights.emplace(std::move(words), run.call.weight_words);
  return !run.lanes.empty();  // Python lets no call through whose weights are all 0
}

bool Operation::read_offsets(Run& run, std::size_t rank) const {
  const Descriptor& said = run.descriptors[rank];
  const std::size_t count = run.call.leaves.size() * said.replicas;
  if (said.blob_length != count * sizeof(std::uint64_t) || said.blob_length > blob_bytes) return false;
  run.offsets[rank].resize(count);
  std::memcpy(run.offsets[rank].data(), meetings_.block(rank).blobs[run.sequence & 1], said.blob_length);
  for (std::size_t index = 0; index < count; ++index) {
    const Leaf& leaf = run.call.leaves[index / said.replicas];
    const std::size_t nbytes = leaf.length * leaf.source_bytes, offset = run.offsets[rank][index];
    // In this order, because a sum of the two could wrap.
    if (offset > layout_.arena_bytes || nbytes > layout_.arena_bytes - offset) return false;
    if (offset % std::min<std::size_t>(leaf.source_bytes, most_alignment) != 0) return false;
  }
  return true;
}

Span Operation::chunk_of(const Run& run, std::size_t chunk) const {
  if (run.choice.chunk_bytes == 0) return {0, run.call.stream_bytes};
  const std::size_t begin = chunk * run.choice.chunk_bytes;
  return {begin, std::min(begin + run.choice.chunk_bytes, run.call.stream_bytes)};
}

// Folds [part.begin, part.end) of the stream, which lies in the chunk at hand, into `results`.
void Operation::fold(const Run& run, Span part, std::byte* results) const {
  const Call& call = run.call;
  const std::size_t chunk_begin = chunk_of(run, run.chunk).begin;
  const PlainArithmetic mode;
  std::vector<const void*> sources(run.lanes.size());
  for (std::size_t i = first_leaf(call.leaves, part.begin); i < call.leaves.size() && call.leaves[i].at < part.end; ++i) {
    const Leaf& leaf = call.leaves[i];
    const Span elements = elements_of(leaf, part);
    if (elements.begin == elements.end) continue;
    Arithmetic arithmetic = run.arithmetic;
    arithmetic.count = 0;
    for (const Lane& lane : run.lanes) {
      if (!call.counts.empty() && lane.index >= call.counts[lane.rank][i]) continue;
      // Loops count elements from the begin of the leaf, which may lie before that of the chunk.
      sources[arithmetic.count++] = source_of(run, lane, i) - (is_staged(run, lane) ? chunk_begin : 0);
    }
    void* const target = results + leaf.result_at;
    leaf.loop(sources.data(), arithmetic, &target, 1, elements.begin, elements.end,
              call.result_bytes > stream_out_bytes && run.choice.path == Path::mapped);
  }
}

bool Operation::is_staged(const Run& run, const Lane& lane) const {
  return lane.rank != meetings_.rank() && run.offsets[lane.rank].empty();
}

// Where a leaf of a lane begins, or would begin if all of the stream were staged.
const std::byte* Operation::source_of(const Run& run, const Lane& lane, std::size_t leaf) const {
  if (lane.rank == meetings_.rank()) return run.call.sources[leaf * run.call.replicas + lane.index];
  const std::size_t replicas = run.descriptors[lane.rank].replicas;
  if (is_staged(run, lane)) {
    return half(run, lane.rank, run.chunk) + lane.index * lane_bytes_of(layout_, replicas) + run.call.leaves[leaf].at;
  }
  return base_ + layout_.arena(lane.rank) + run.offsets[lane.rank][leaf * replicas + lane.index];
}

void Operation::copy_out(const Call& call, const std::byte* results) const {
  const auto copy = call.result_bytes > stream_out_bytes ? copy_streamed : copy_cached;
  for (const Piece& piece : call.pieces_out) copy(piece.memory, results + piece.at, piece.nbytes);
}

// What ranks said, where that is what the operation is for.
void Operation::tell(const Run& run, Outcome& outcome) const {
  const bool is_refused = outcome.decision.phase == Phase::refused;
  const bool has_agreed = outcome.decision.phase == Phase::committed && run.choice.path == Path::agree;
  if (!is_refused && !has_agreed) return;
  for (std::size_t rank = 0; rank < layout_.ranks; ++rank) {
    const Block& block = meetings_.block(rank);
    const std::size_t parity = run.sequence & 1;
    const Descriptor said = block.descriptors[parity];
    outcome.descriptors.push_back(said);
    outcome.descriptions.emplace_back(block.descriptions[parity],
                                      std::min<std::size_t>(said.description_length, description_bytes));
    const auto* const blob = reinterpret_cast<const char*>(block.blobs[parity]);
    outcome.blobs.emplace_back(blob, has_agreed ? std::min<std::size_t>(said.blob_length, blob_bytes) : 0);
  }
}

}  // namespace treefold::group
