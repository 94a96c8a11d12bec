// How lanes share resources: max-min fairly, in chunks per second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "pipeline.hpp"

namespace treefold {

constexpr double same = 1 + 1e-9;  // shares that differ by less are equal
constexpr double never = std::numeric_limits<double>::infinity();
constexpr std::int32_t none = -1;

using Indices = std::vector<std::int32_t>;

// A stream is the set of all lanes that use the same resources. Rates are in chunks per second, so all lanes of one
// stream have the same rate. A lane without resources belongs to no stream.
class Streams {
 public:
  explicit Streams(const Lanes& lanes) : of_lane_(lanes.num_lanes, none) {
    std::map<Indices, std::int32_t> known;
    for (std::size_t lane = 0; lane < lanes.num_lanes; ++lane) {
      const Indices used(lanes.resources + lanes.resource_start[lane], lanes.resources + lanes.resource_start[lane + 1]);
      if (used.empty()) continue;
      const auto found = known.emplace(used, static_cast<std::int32_t>(size()));
      of_lane_[lane] = found.first->second;
      if (!found.second) continue;
      resources_.insert(resources_.end(), used.begin(), used.end());
      start_.push_back(resources_.size());
    }
  }

  std::size_t size() const { return start_.size() - 1; }
  std::int32_t of_lane(std::int32_t lane) const { return of_lane_[lane]; }  // `none` for lanes without resources

  struct Range {
    const std::int32_t *first, *last;
    const std::int32_t* begin() const { return first; }
    const std::int32_t* end() const { return last; }
  };
  Range resources(std::int32_t stream) const {
    return {resources_.data() + start_[stream], resources_.data() + start_[stream + 1]};
  }

 private:
  Indices of_lane_, resources_;
  std::vector<std::size_t> start_{0};
};

// The max-min fair rates of streams, in chunks per second, by progressive filling: all rates rise together, and when a
// resource is full, the rates of its streams stop. After a change, only streams that are connected to it through shared
// resources are recomputed. Rates below `floor_` stay as well: that is the lowest level at which a resource of a changed
// stream is full, before or after the change. Below it, all rates rise as before.
class Sharing {
 public:
  Sharing(const Lanes& lanes, const Streams& streams)
      : capacities_(lanes.capacities),
        streams_(streams),
        active_(lanes.num_resources),
        is_changed_(lanes.num_resources),
        seen_(lanes.num_resources),
        index_in_open_(lanes.num_resources),
        nbytes_(streams.size()),
        rate_(streams.size()),
        stream_seen_(streams.size()),
        is_rising_(streams.size()) {}

  // Sets the bytes that one chunk on every busy lane of a stream has in all; 0 if no lane is busy.
  void set(std::int32_t stream, double nbytes) {
    const bool was_active = nbytes_[stream] > 0;
    if (was_active) floor_ = std::min(floor_, rate_[stream]);
    nbytes_[stream] = nbytes;
    // Above every floor, so that the stream is recomputed.
    rate_[stream] = never;
    for (const auto resource : streams_.resources(stream)) {
      auto& users = active_[resource];
      if (nbytes > 0 && !was_active) users.push_back(stream);
      if (nbytes <= 0 && was_active) {
        *std::find(users.begin(), users.end(), stream) = users.back();
        users.pop_back();
      }
      if (!is_changed_[resource]) changed_.push_back(resource);
      is_changed_[resource] = true;
    }
  }

  // Calls take(stream, rate) for all active streams that may have a new rate since the last call.
  template <typename Take>
  void changes(const Take& take) {
    ++round_;
    for (const auto resource : changed_) lower_floor(resource);
    // Streams that are fixed together may differ from their resources' shares by the factor `same`. Without a margin, a
    // stream that the change affects could seem to be below the floor.
    floor_ *= 1 - 10 * (same - 1);
    for (const auto resource : changed_) {
      is_changed_[resource] = false;
      if (seen_[resource] == round_) continue;
      find_part(resource);
      level_ = 0;
      for (auto rising = part_.size(); rising > 0;) rising -= fill_fullest();
      for (const auto stream : part_) take(stream, rate_[stream]);
    }
    changed_.clear();
    floor_ = never;
  }

 private:
  // Lowers the floor to the level at which this resource is full, provided that no rate below that level changes.
  void lower_floor(std::int32_t resource) {
    double level = 0, before = 0;
    do {
      double left = capacities_[resource], weight = 0;
      for (const auto stream : active_[resource]) {
        if (rate_[stream] < level) {
          left -= rate_[stream] * nbytes_[stream];
        } else {
          weight += nbytes_[stream];
        }
      }
      before = level;
      level = weight > 0 ? left / weight : never;  // rises, because streams that stay below the level leave more to the others
      if (level >= floor_) return;
    } while (level > before);
    floor_ = level;
  }

  // Finds the streams above the floor that are connected to a resource, and the resources that they use, breadth first.
  void find_part(std::int32_t start) {
    part_.clear();
    open_.clear();
    open(start);
    for (std::size_t next = 0; next < open_.size(); ++next) {
      double left = capacities_[open_[next].resource], weight = 0;
      std::int32_t num_rising = 0;
      for (const auto stream : active_[open_[next].resource]) {
        if (rate_[stream] < floor_) {
          left -= rate_[stream] * nbytes_[stream];
          continue;
        }
        weight += nbytes_[stream];
        ++num_rising;
        // Numbers of rounds instead of flags: nothing has to be cleared, which would cost more than small changes do.
        if (stream_seen_[stream] == round_) continue;
        stream_seen_[stream] = round_;
        part_.push_back(stream);
        is_rising_[stream] = true;
        for (const auto resource : streams_.resources(stream)) {
          if (seen_[resource] != round_) open(resource);
        }
      }
      open_[next].left = left;
      open_[next].weight = weight;
      open_[next].num_rising = num_rising;
    }
  }

  void open(std::int32_t resource) {
    seen_[resource] = round_;
    index_in_open_[resource] = static_cast<std::int32_t>(open_.size());
    open_.push_back({0, 0, 0, resource, 0});
  }

  // Fixes the rates of all streams that use the fullest resources. Returns how many these are.
  std::size_t fill_fullest() {
    double lowest = never;
    for (auto& one : open_) {
      one.share = one.left / one.weight;
      lowest = std::min(lowest, one.share);
    }
    level_ = std::max(level_, lowest);  // rounding must not let it fall
    const double highest = level_ * same;
    std::size_t count = 0;
    for (const auto& one : open_) {
      // All resources that are full at this level, within rounding: one after the other, symmetric lanes would get
      // rates that differ in their last digits, and their chunks would drift apart.
      if (one.share > highest) continue;
      for (const auto stream : active_[one.resource]) {
        if (!is_rising_[stream]) continue;
        is_rising_[stream] = false;
        rate_[stream] = level_;
        ++count;
        for (const auto resource : streams_.resources(stream)) {
          auto& other = open_[index_in_open_[resource]];
          other.left -= level_ * nbytes_[stream];
          other.weight -= nbytes_[stream];
          --other.num_rising;
        }
      }
    }
    for (std::size_t index = 0; index < open_.size();) {
      if (open_[index].num_rising > 0) {
        ++index;
        continue;
      }
      open_[index] = open_.back();  // no stream rises here any more, although rounding may have left some weight
      index_in_open_[open_[index].resource] = static_cast<std::int32_t>(index);
      open_.pop_back();
    }
    return count;
  }

  // A resource that is recomputed: the bytes per second left, and the bytes of one chunk on each rising stream.
  struct Open {
    double left, weight, share;
    std::int32_t resource, num_rising;
  };

  const double* capacities_;
  const Streams& streams_;
  std::vector<Indices> active_;  // by resource: the streams that use it now
  std::vector<char> is_changed_;
  Indices changed_;
  std::vector<std::int64_t> seen_;
  Indices index_in_open_;  // of a resource
  std::vector<double> nbytes_, rate_;
  std::vector<std::int64_t> stream_seen_;
  std::vector<char> is_rising_;
  Indices part_;
  std::vector<Open> open_;
  std::int64_t round_ = 0;
  double level_ = 0, floor_ = never;
};

}  // namespace treefold
