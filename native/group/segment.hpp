// The memory that the ranks of one host share, and how it is laid out: one sealed memfd, mapped once by every rank.
//
//   control | a block per rank | staging, two halves per rank | results: scratch, then areas | an arena per rank
//
// The file is sparse. Control, blocks and staging are allocated when it is made; results and arenas when they are first
// needed, by fallocate, so that a machine without memory says so instead of killing whoever touches the page. What is
// large begins at a huge page, for systems whose shared memory may have them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocol.hpp"

namespace treefold::group {

constexpr std::size_t most_ranks = 255;
constexpr std::size_t most_areas = 64;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
constexpr std::size_t description_bytes = 400;  // of a rank's own description of its call
constexpr std::size_t blob_bytes = 32 << 10;  // of whatever else it says
constexpr std::size_t most_replicas = 1024;  // of one rank in one call: each has a cache line of staging at least

// What a rank says about its call. Calls match if `kind` is the same on all ranks.
struct Descriptor {
  std::uint64_t sequence;
  std::uint64_t plan;  // the digest of the plan that this rank would run; 0: it has none yet
  std::uint8_t kind[24];  // collective, op, accumulation, root, and a hash of 128 bits over the layout
  std::uint8_t is_refused;  // this rank cannot make its call; its words say why
  std::uint8_t is_mapped;  // all its values lie in its arena, at the offsets in the blob
  std::uint8_t wants_lease;  // it will keep the result area
  std::uint8_t is_mixed;  // its leaves have different numbers of contributions, `replicas` at most
  std::uint32_t replicas;
  std::uint32_t description_length;
  std::uint32_t blob_length;
};

// What the last arriver of the first meeting chose for all.
struct Choice {
  Path path;
  std::uint32_t area;  // its index; most_areas: the scratch area
  std::uint64_t area_offset;  // in the segment
  std::uint64_t chunk_bytes;  // of the contributions of one replica
  std::uint64_t missing_bytes;  // why the operation was refused, if no area could be had; else 0
  std::uint8_t is_unplanned;  // why it was refused, if the calls match, but a rank has no plan or another one
};

struct Area {
  std::uint64_t offset, nbytes;  // in the segment; 0 bytes: free
};

// Every word that ranks write at once is an atomic of 32 or 64 bits: lock-free on all 64-bit systems, and therefore
// good between processes that map it at different addresses. No pointer ever stands here, only offsets.
struct Control {
  std::uint64_t magic, ranks;
  // A cache line each: all ranks spin on `met` while others still count themselves in `arrived`.
  alignas(64) std::atomic<std::uint64_t> decision;
  alignas(64) std::atomic<std::uint64_t> arrived;  // at all meetings so far, over all ranks
  alignas(64) std::atomic<std::uint32_t> met;  // meetings that are over; ranks sleep on it
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::int64_t> met_at;  // when the last meeting was over: ticks of the clock, which all processes share
  // Plain memory, written by the last arriver before `met`, and read by the others after it. The other half may still
  // be read by a rank that is late in returning from the operation before.
  alignas(64) Choice choice[2];  // by the parity of the operation's number
  std::uint64_t scratch_bytes;  // allocated so far
  Area areas[most_areas];
};
static_assert(sizeof(Control) <= page_bytes);

struct Block {
  // Twice the number of the meeting where the rank is, less one until it has been counted there.
  alignas(64) std::atomic<std::uint64_t> step;
  std::atomic<std::uint32_t> departure;  // 0, or the Cause with which it closed the group
  // How many results on each area this rank still holds; written by whichever thread drops the last view.
  alignas(64) std::atomic<std::uint32_t> leases[most_areas];
  // Plain as well: each rank writes its own half before it arrives at the first meeting of an operation. It writes the
  // same half again two operations later, when all ranks have met once more and so have read the old contents.
  alignas(64) Descriptor descriptors[2];
  char descriptions[2][description_bytes];
  alignas(64) unsigned char blobs[2][blob_bytes];
};

constexpr std::size_t round_up(std::size_t number, std::size_t step) { return (number + step - 1) / step * step; }

// Returns the first place from `offset` on where `nbytes` may begin: at a huge page, if they fill one.
constexpr std::size_t place_for(std::size_t nbytes, std::size_t offset) {
  return round_up(offset, nbytes >= huge_page_bytes ? huge_page_bytes : page_bytes);
}

// Where things are in the segment; the same on all ranks, because it follows from these numbers.
struct Layout {
  std::size_t ranks = 0, result_bytes = 0, arena_bytes = 0, half_bytes = 0;
  std::size_t blocks() const { return page_bytes; }
  std::size_t staging() const { return blocks() + ranks * block_bytes; }
  std::size_t allocated() const { return staging() + ranks * 2 * half_bytes; }
  std::size_t scratch() const { return place_for(result_bytes, allocated()); }
  std::size_t leased() const { return place_for(result_bytes, scratch() + result_bytes); }
  std::size_t arena(std::size_t rank) const {
    return place_for(arena_bytes, leased() + result_bytes) + rank * place_for(arena_bytes, arena_bytes);
  }
  std::size_t total() const { return arena(ranks); }

  static constexpr std::size_t block_bytes = round_up(sizeof(Block), page_bytes);
  static Layout of(std::size_t ranks, std::size_t result_bytes, std::size_t arena_bytes);
};

// Makes the file: sealed against any change of its size, with its first part allocated and a fresh Control. Returns its
// descriptor, or -1 with errno.
int create_segment(const Layout& layout);

// Maps the file. Null with errno if the system refuses.
std::byte* map_segment(int fd, const Layout& layout);
void unmap_segment(std::byte* base, const Layout& layout);

// Allocates the pages of a range of the file, which is mapped at `base` unless that is null; huge ones if the range is large and the system
// has them for shared memory. Returns 0 or an error number; ENOMEM also where a control group has no room for them,
// which the kernel would answer by killing a process; none of the range is allocated then.
int allocate(std::byte* base, int fd, std::size_t offset, std::size_t nbytes);
// Gives the pages of a range back.
void release(int fd, std::size_t offset, std::size_t nbytes);

}  // namespace treefold::group
