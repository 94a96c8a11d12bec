// Runs the ranks of a group as threads over one segment, for the thread sanitizer: operations of every program at random,
// among them calls that differ; then ranks that are interrupted at any time, and one that does not come. Exits with 0 if
// every result is right, and all ranks are told the same.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "dispatch.hpp"
#include "group/arena.hpp"
#include "group/operation.hpp"

namespace {

using namespace treefold;
using namespace treefold::group;

std::atomic<int> wrong{0};

void expect(bool holds, const char* what) {
  if (holds) return;
  ++wrong;
  std::fprintf(stderr, "not so: %s\n", what);
}

// The memory of a group, mapped once: the sanitizer follows addresses.
struct World {
  explicit World(std::size_t ranks_)
      : ranks(ranks_),
        layout(Layout::of(ranks, std::size_t{8} << 20, std::size_t{1} << 20)),
        fd(create_segment(layout)),
        base(fd < 0 ? nullptr : map_segment(fd, layout)) {
    if (base == nullptr) std::perror("no segment");
  }
  ~World() {
    unmap_segment(base, layout);
    close(fd);
  }
  const std::size_t ranks;
  const Layout layout;
  const int fd;
  std::byte* const base;
};

enum class Kind { agree, small, staged, mapped, placed, kept, differs };

// One rank: what it calls follows from the seed, which all ranks share.
class Rank {
 public:
  Rank(const World& world, std::size_t rank)
      : world_(world),
        rank_(rank),
        meetings_(world.base, world.layout, rank, std::vector<Peer>(world.ranks), rank % 2 == 0),
        areas_(world.base, world.fd, world.layout),
        operation_(meetings_, areas_, world.base, world.layout),
        arena_(world.base, world.fd, world.layout.arena(rank), world.layout.arena_bytes) {}

  Phase call(Kind kind, std::size_t length, const Patience& patience) {
    const bool folds = kind != Kind::agree && kind != Kind::placed;
    std::vector<float> values(length, static_cast<float>(1 << rank_)), results(length, -1);
    std::byte* source = reinterpret_cast<std::byte*>(values.data());
    std::size_t offset = 0;
    if (kind == Kind::mapped) {
      expect(arena_.take(length * sizeof(float), offset) == 0, "there is memory for an array of one's own");
      source = world_.base + offset;
      std::memcpy(source, values.data(), length * sizeof(float));
    }
    Call call;
    call.kind[0] = static_cast<unsigned char>(kind == Kind::differs ? 100 + rank_ : 1 + static_cast<std::size_t>(kind));
    call.description = "rank " + std::to_string(rank_);
    if (folds) {
      const Loop loop = usable_levels()[0]->loops[static_cast<int>(Dtype::float32)][static_cast<int>(Op::sum)][0];
      call.leaves.push_back({loop, length, sizeof(float), sizeof(float), 0, 0});
      call.stream_bytes = call.result_bytes = (length * sizeof(float) + 63) / 64 * 64;
      call.replicas = 1;
      call.sources = {source};
      call.plan = 1;
      call.wants_lease = kind == Kind::kept;
    } else if (kind == Kind::placed) {
      call.result_bytes = world_.ranks * length * sizeof(float);
      call.pieces_in.push_back({rank_ * length * sizeof(float), source, length * sizeof(float)});
    }
    std::byte* const target = reinterpret_cast<std::byte*>(results.data());
    const std::size_t next = (rank_ + 1) % world_.ranks;
    if (folds && !call.wants_lease) call.pieces_out.push_back({0, target, length * sizeof(float)});
    if (kind == Kind::placed) call.pieces_out.push_back({next * length * sizeof(float), target, length * sizeof(float)});
    const Outcome outcome = operation_.run(++sequence_, call, patience);
    if (kind == Kind::mapped) arena_.give_back(offset);
    const bool is_committed = outcome.decision.phase == Phase::committed;
    if (kind == Kind::kept && is_committed) {
      keep(outcome, length);
      return outcome.decision.phase;
    }
    const int total = kind == Kind::placed ? 1 << next : (1 << world_.ranks) - 1;
    const bool has_result = kind != Kind::agree && is_committed;
    for (const float result : results) expect(result == static_cast<float>(has_result ? total : -1), "whole, or as it was");
    if (kind == Kind::agree && is_committed)
      expect(outcome.descriptions[next] == "rank " + std::to_string(next), "words arrive");
    if (outcome.decision.phase == Phase::refused) expect(outcome.descriptions.size() == world_.ranks, "all sides are shown");
    return outcome.decision.phase;
  }

  std::uint64_t sequence() const { return sequence_; }

 private:
  // Claims the result's area for as long as three results later.
  void keep(const Outcome& outcome, std::size_t length) {
    const auto* const result = reinterpret_cast<const float*>(world_.base + outcome.area_offset);
    for (std::size_t i = 0; i < length; ++i) expect(result[i] == static_cast<float>((1 << world_.ranks) - 1), "it is whole");
    if (outcome.area == most_areas) return;
    auto& leases = meetings_.block(rank_).leases;
    leases[outcome.area].fetch_add(1, std::memory_order_acq_rel);
    kept_.push_back({outcome.area, result, length});
    if (kept_.size() < 4) return;
    const Kept& oldest = kept_.front();
    for (std::size_t i = 0; i < oldest.length; ++i) {
      expect(oldest.result[i] == static_cast<float>((1 << world_.ranks) - 1), "and stays so while somebody keeps it");
    }
    leases[oldest.area].fetch_sub(1, std::memory_order_acq_rel);
    kept_.erase(kept_.begin());
  }

  struct Kept {
    std::uint32_t area;
    const float* result;
    std::size_t length;
  };

  const World& world_;
  const std::size_t rank_;
  Meetings meetings_;
  Areas areas_;
  Operation operation_;
  Arena arena_;
  std::vector<Kept> kept_;
  std::uint64_t sequence_ = 0;
};

template <class Body>
void run_ranks(std::size_t ranks, Body body) {
  const World world(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&world, &body, rank] {
      Rank one(world, rank);
      body(one, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Patience patience_of(std::chrono::milliseconds most) { return {Clock::now() + most, {}, {}}; }

void call_at_random(std::size_t ranks, int operations) {
  run_ranks(ranks, [ranks, operations](Rank& rank, std::size_t) {
    std::mt19937 draw(7);
    for (int operation = 0; operation < operations; ++operation) {
      const Kind kind = static_cast<Kind>(draw() % 7);
      const std::size_t length = kind == Kind::small ? 1 + draw() % 4000 : 5000 + draw() % 200'000;
      const Phase phase = rank.call(kind, length, patience_of(std::chrono::minutes(2)));
      const bool is_refused = kind == Kind::differs && ranks > 1;
      expect(phase == (is_refused ? Phase::refused : Phase::committed), "a call ends as it must");
    }
  });
}

// Rank 0 is interrupted some microseconds after an operation has begun; where it ends is what all are told.
void interrupt_at_random() {
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<std::uint64_t> ends(3);
    run_ranks(3, [turn, &ends](Rank& rank, std::size_t number) {
      const Clock::time_point when = Clock::now() + std::chrono::microseconds(500 + 97 * turn);
      Patience patience = patience_of(std::chrono::minutes(2));
      if (number == 0) patience.interrupted = [when] { return Clock::now() > when; };
      while (rank.call(turn % 2 == 0 ? Kind::staged : Kind::small, turn % 2 == 0 ? 100'000 : 100, patience) != Phase::broken) {
        if (number == 0 && Clock::now() > when) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (number != 0 && turn % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
      ends[number] = rank.sequence();
    });
    expect(ends[0] == ends[1] && ends[1] == ends[2], "an interrupted call ends all ranks in the same operation");
  }
}

void be_late() {
  run_ranks(3, [](Rank& rank, std::size_t number) {
    const Phase first = rank.call(Kind::small, 10, patience_of(std::chrono::minutes(2)));
    expect(first == Phase::committed, "all come");
    if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const Phase second = rank.call(Kind::staged, 100'000, patience_of(std::chrono::milliseconds(100)));
    expect(second == Phase::broken, "whoever comes late hears so, as all others");
  });
}

}  // namespace

int main() {
  for (const std::size_t ranks : {1, 2, 3, 4}) call_at_random(ranks, 70);
  interrupt_at_random();
  be_late();
  std::printf("ranks as threads: %d wrong\n", wrong.load());
  return wrong == 0 ? 0 : 1;
}
