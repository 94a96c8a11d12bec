#include "pipeline.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <vector>

namespace treefold {
namespace {

constexpr double at_once = 1 + 1e-9;  // what ends within a billionth of the time that has passed ends together
constexpr double same = 1 + 1e-9;     // shares that differ by less are equal
constexpr std::int64_t starts_now = -1;

struct Event {
  double time;
  std::int32_t lane;
  std::int64_t version;  // of the lane's rate, or starts_now: the latency is over
  bool operator>(const Event& other) const {
    if (time != other.time) return time > other.time;
    return lane != other.lane ? lane > other.lane : version > other.version;
  }
};

// The rates of active lanes, in chunks per second; what changes on a resource concerns only lanes that it is tied to.
class Sharing {
 public:
  explicit Sharing(const Lanes& lanes)
      : lanes_(lanes), active_(lanes.num_resources), place_(lanes.resource_start[lanes.num_lanes]),
        owner_(place_.size()), is_changed_(lanes.num_resources), seen_(lanes.num_resources), lane_seen_(lanes.num_lanes),
        left_(lanes.num_resources), weight_(lanes.num_resources), fixed_(lanes.num_lanes), rate_(lanes.num_lanes) {
    for (std::size_t lane = 0; lane < lanes.num_lanes; ++lane) {
      std::fill(owner_.begin() + lanes.resource_start[lane], owner_.begin() + lanes.resource_start[lane + 1], lane);
    }
  }

  void add(std::int32_t lane) {
    for (auto i = lanes_.resource_start[lane]; i < lanes_.resource_start[lane + 1]; ++i) {
      auto& users = active_[lanes_.resources[i]];
      place_[i] = users.size();
      users.push_back(i);
      note(lanes_.resources[i]);
    }
  }

  void remove(std::int32_t lane) {
    for (auto i = lanes_.resource_start[lane]; i < lanes_.resource_start[lane + 1]; ++i) {
      auto& users = active_[lanes_.resources[i]];
      users[place_[i]] = users.back();
      place_[users[place_[i]]] = place_[i];
      users.pop_back();
      note(lanes_.resources[i]);
    }
  }

  // Calls take(lane, rate) for all lanes whose rate may have changed since the last call.
  template <typename Take>
  void changes(const Take& take) {
    ++round_;
    for (const auto resource : changed_) {
      is_changed_[resource] = false;
      if (seen_[resource] != round_) share_part(resource, take);
    }
    changed_.clear();
  }

 private:
  void note(std::int32_t resource) {
    if (!is_changed_[resource]) changed_.push_back(resource);
    is_changed_[resource] = true;
  }

  // Finds the lanes that hang together with a resource and shares among them: all rates rise together, and where a
  // resource is full, those of its lanes stay.
  template <typename Take>
  void share_part(std::int32_t start, const Take& take) {
    part_.clear();
    open_.assign(1, start);
    seen_[start] = round_;
    for (std::size_t next = 0; next < open_.size(); ++next) {
      const auto resource = open_[next];
      left_[resource] = lanes_.capacities[resource];
      weight_[resource] = 0;
      for (const auto entry : active_[resource]) {
        const auto lane = owner_[entry];
        weight_[resource] += lanes_.nbytes[lane];
        if (lane_seen_[lane] == round_) continue;
        lane_seen_[lane] = round_;
        part_.push_back(lane);
        fixed_[lane] = false;
        for (auto i = lanes_.resource_start[lane]; i < lanes_.resource_start[lane + 1]; ++i) {
          const auto other = lanes_.resources[i];
          if (seen_[other] != round_) {
            seen_[other] = round_;
            open_.push_back(other);
          }
        }
      }
    }
    level_ = 0;
    for (auto rising = part_.size(); rising > 0;) rising -= fill_fullest();
    for (const auto lane : part_) take(lane, rate_[lane]);
  }

  // Fixes the rates of all who use the fullest resources; returns how many those were.
  std::size_t fill_fullest() {
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto resource : open_) lowest = std::min(lowest, share_of(resource));
    level_ = std::max(level_, lowest);  // rounding must not let it fall
    const double highest = level_ * same;
    std::size_t count = 0;
    full_.clear();
    for (const auto resource : open_) {
      if (share_of(resource) <= highest) full_.push_back(resource);
    }
    for (const auto resource : full_) {
      for (const auto entry : active_[resource]) {
        const auto lane = owner_[entry];
        if (fixed_[lane]) continue;
        fixed_[lane] = true;
        rate_[lane] = level_;
        ++count;
        for (auto i = lanes_.resource_start[lane]; i < lanes_.resource_start[lane + 1]; ++i) {
          left_[lanes_.resources[i]] -= rate_[lane] * lanes_.nbytes[lane];
          weight_[lanes_.resources[i]] -= lanes_.nbytes[lane];
        }
      }
    }
    // What nobody uses any more is out, whatever rounding has left of its weight.
    open_.erase(std::remove_if(open_.begin(), open_.end(), [this](std::int32_t resource) {
      return std::all_of(active_[resource].begin(), active_[resource].end(),
                         [this](std::int32_t entry) { return fixed_[owner_[entry]]; });
    }), open_.end());
    return count;
  }

  double share_of(std::int32_t resource) const {
    return weight_[resource] > 0 ? left_[resource] / weight_[resource] : std::numeric_limits<double>::infinity();
  }

  const Lanes& lanes_;
  std::vector<std::vector<std::int32_t>> active_;  // by resource: entries of `resources` that are active
  std::vector<std::size_t> place_;                 // of every entry: where it stands there
  std::vector<std::int32_t> owner_;                // of every entry: the lane it belongs to
  std::vector<char> is_changed_;
  std::vector<std::int32_t> changed_;
  std::vector<std::int64_t> seen_, lane_seen_;
  std::vector<double> left_, weight_;
  std::vector<char> fixed_;
  std::vector<double> rate_;
  std::vector<std::int32_t> part_, open_, full_;
  std::int64_t round_ = 0;
  double level_ = 0;
};

class Clock {
 public:
  Clock(const Lanes& lanes, double* starts, double* stops)
      : lanes_(lanes), starts_(starts), stops_(stops), sharing_(lanes), lanes_of_(lanes.num_tasks),
        followers_(lanes.num_tasks), done_(lanes.num_tasks), ended_(lanes.num_lanes), is_busy_(lanes.num_lanes),
        is_freed_(lanes.num_lanes), version_(lanes.num_lanes), left_(lanes.num_lanes), rate_(lanes.num_lanes),
        since_(lanes.num_lanes) {
    for (std::size_t lane = 0; lane < lanes.num_lanes; ++lane) lanes_of_[lanes.task[lane]].push_back(lane);
    for (std::size_t task = 0; task < lanes.num_tasks; ++task) {
      for (auto i = lanes.need_start[task]; i < lanes.need_start[task + 1]; ++i) {
        auto& after = followers_[lanes.need_task[i]];
        after.insert(after.end(), lanes_of_[task].begin(), lanes_of_[task].end());
      }
    }
  }

  bool run(bool (*interrupted)()) {
    for (std::size_t lane = 0; lane < lanes_.num_lanes; ++lane) free(lane);
    start_freed();
    share();
    for (std::size_t round = 1; !events_.empty(); ++round) {
      if (round % 4096 == 0 && interrupted()) return false;
      const double soon = std::max(now_, events_.top().time) * at_once;
      while (!events_.empty() && events_.top().time <= soon) {
        const Event event = events_.top();
        events_.pop();
        if (event.version != starts_now && event.version != version_[event.lane]) continue;
        now_ = std::max(now_, event.time);
        if (event.version == starts_now) {
          flow(event.lane);
        } else {
          sharing_.remove(event.lane);
          end(event.lane);
        }
      }
      start_freed();
      share();
    }
    return true;
  }

 private:
  void free(std::int32_t lane) {
    if (!is_freed_[lane]) freed_.push_back(lane);
    is_freed_[lane] = true;
  }

  // Starts every freed lane that has what its next chunk needs, and what that sets free.
  void start_freed() {
    for (std::size_t next = 0; next < freed_.size(); ++next) {
      const auto lane = freed_[next];
      is_freed_[lane] = false;
      if (is_busy_[lane] || ended_[lane] == lanes_.num_chunks || !has_needs(lane)) continue;
      is_busy_[lane] = true;
      starts_[lane * lanes_.num_chunks + ended_[lane]] = now_;
      if (lanes_.alpha_s[lane] > 0) {
        events_.push({now_ + lanes_.alpha_s[lane], lane, starts_now});
      } else {
        flow(lane);
      }
    }
    freed_.clear();
  }

  bool has_needs(std::int32_t lane) const {
    const auto task = lanes_.task[lane];
    for (auto i = lanes_.need_start[task]; i < lanes_.need_start[task + 1]; ++i) {
      const auto wanted = lanes_.need_counts[i * lanes_.num_chunks + ended_[lane]];
      if (done_[lanes_.need_task[i]] < static_cast<std::size_t>(wanted)) return false;
    }
    return true;
  }

  void flow(std::int32_t lane) {
    if (lanes_.resource_start[lane] == lanes_.resource_start[lane + 1] || lanes_.nbytes[lane] <= 0) {
      end(lane);
      return;
    }
    left_[lane] = 1;
    rate_[lane] = 0;
    since_[lane] = now_;
    sharing_.add(lane);
  }

  void share() {
    sharing_.changes([this](std::int32_t lane, double rate) {
      if (rate == rate_[lane]) return;
      left_[lane] -= rate_[lane] * (now_ - since_[lane]);
      rate_[lane] = rate;
      since_[lane] = now_;
      events_.push({now_ + std::max(left_[lane], 0.0) / rate, lane, ++version_[lane]});
    });
  }

  void end(std::int32_t lane) {
    ++version_[lane];
    stops_[lane * lanes_.num_chunks + ended_[lane]++] = now_;
    is_busy_[lane] = false;
    free(lane);
    const auto task = lanes_.task[lane];
    std::size_t done = ended_[lane];
    for (const auto other : lanes_of_[task]) done = std::min(done, ended_[other]);
    if (done > done_[task]) {
      done_[task] = done;
      for (const auto after : followers_[task]) free(after);
    }
  }

  const Lanes& lanes_;
  double* starts_;
  double* stops_;
  Sharing sharing_;
  std::vector<std::vector<std::int32_t>> lanes_of_, followers_;
  std::vector<std::size_t> done_, ended_;
  std::vector<char> is_busy_, is_freed_;
  std::vector<std::int32_t> freed_;
  std::vector<std::int64_t> version_;
  std::vector<double> left_, rate_, since_;  // a chunk's rest when its rate last changed, that rate, and when it was
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  double now_ = 0;
};

}  // namespace

bool run_pipeline(const Lanes& lanes, double* starts, double* stops, bool (*interrupted)()) {
  return Clock(lanes, starts, stops).run(interrupted);
}

}  // namespace treefold
