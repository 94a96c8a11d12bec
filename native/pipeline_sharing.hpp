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

// All lanes that use the same resources, where they use any, are one stream. Rates are in chunks per second, so that
// lanes of one stream always have the same rate.
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

// The max-min fair rates of streams, in chunks per second: all rise together, and where a resource is full, those of its
// streams stay. A change concerns only what resources tie to it, and no rate below the first level at which a resource
// of a changed stream is full, before or after: up to there all rise as they did.
class Sharing {
 public:
  Sharing(const Lanes& lanes, const Streams& streams)
      : capacities_(lanes.capacities), streams_(streams), active_(lanes.num_resources), is_changed_(lanes.num_resources),
        seen_(lanes.num_resources), place_(lanes.num_resources), nbytes_(streams.size()), rate_(streams.size()),
        stream_seen_(streams.size()), is_rising_(streams.size()) {}

  // Sets how many bytes one chunk on each of a stream's busy lanes has together; 0 if none of them is busy.
  void set(std::int32_t stream, double nbytes) {
    const bool was_active = nbytes_[stream] > 0;
    if (was_active) floor_ = std::min(floor_, rate_[stream]);
    nbytes_[stream] = nbytes;
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

  // Calls take(stream, rate) for all active streams whose rate may have changed since the last call.
  template <typename Take>
  void changes(const Take& take) {
    ++round_;
    for (const auto resource : changed_) lower_floor(resource);
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
  // Lowers the floor to the level at which a resource is full if no rate below that level changes.
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
      level = weight > 0 ? left / weight : never;  // rises, because what stays below the level leaves more to the rest
      if (level >= floor_) return;
    } while (level > before);
    floor_ = level;
  }

  // Finds the streams that hang together with a resource and rise above the floor, and the resources that they use.
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
    place_[resource] = static_cast<std::int32_t>(open_.size());
    open_.push_back({0, 0, 0, resource, 0});
  }

  // Fixes the rates of all who use the fullest resources; returns how many those were.
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
      if (one.share > highest) continue;
      for (const auto stream : active_[one.resource]) {
        if (!is_rising_[stream]) continue;
        is_rising_[stream] = false;
        rate_[stream] = level_;
        ++count;
        for (const auto resource : streams_.resources(stream)) {
          auto& other = open_[place_[resource]];
          other.left -= level_ * nbytes_[stream];
          other.weight -= nbytes_[stream];
          --other.num_rising;
        }
      }
    }
    for (std::size_t place = 0; place < open_.size();) {
      if (open_[place].num_rising > 0) {
        ++place;
        continue;
      }
      open_[place] = open_.back();  // nobody rises here any more, whatever rounding has left of the weight
      place_[open_[place].resource] = static_cast<std::int32_t>(place);
      open_.pop_back();
    }
    return count;
  }

  // A resource of the part that is shared among: bytes per second left, bytes of one chunk on each rising stream.
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
  Indices place_;  // of a resource among the open ones
  std::vector<double> nbytes_, rate_;
  std::vector<std::int64_t> stream_seen_;
  std::vector<char> is_rising_;
  Indices part_;
  std::vector<Open> open_;
  std::int64_t round_ = 0;
  double level_ = 0, floor_ = never;
};

}  // namespace treefold
