#include "pipeline.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "pipeline_events.hpp"
#include "pipeline_sharing.hpp"

namespace treefold {
namespace {

constexpr double at_once = 1 + 1e-9;  // ends within a billionth of the time so far count as simultaneous

// The chunks that flow on the lanes of one stream. All progress at the same rate, so they end in the order in which they
// began. A chunk ends when the progress of the stream, counted in chunks, has grown by one since the chunk began.
struct Flow {
  std::int32_t first = none, last = none;  // lanes, linked by `behind`
  double progress = 0, rate = 0, since = 0;  // progress at `since`, and chunks per second from then on
  double end = never;                        // when the chunk of the first lane ends at this rate
  double queued = never;                     // the time of its event, which may be too early, never too late
};

class Clock {
 public:
  Clock(const Lanes& lanes, double* starts, double* stops)
      : lanes_(lanes),
        starts_(starts),
        stops_(stops),
        streams_(lanes),
        sharing_(lanes, streams_),
        flows_(streams_.size()),
        behind_(lanes.num_lanes),
        goal_(lanes.num_lanes),
        lanes_of_(lanes.num_tasks),
        followers_(lanes.num_tasks),
        done_(lanes.num_tasks),
        ended_(lanes.num_lanes),
        is_busy_(lanes.num_lanes),
        is_freed_(lanes.num_lanes),
        events_(lanes.num_lanes + streams_.size()) {
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
    for (std::size_t round = 1; has_next(); ++round) {
      // The test takes the GIL, which costs more than hundreds of events.
      if (round % 4096 == 0 && interrupted()) return false;
      const double soon = std::max(now_, events_.top().time) * at_once;
      do {
        const Event event = events_.top();
        events_.pop();
        now_ = std::max(now_, event.time);
        if (is_latency(event)) {
          flow(event.key);
        } else {
          end_first(stream_of(event));
        }
      } while (has_next() && events_.top().time <= soon);
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

  // Starts every freed lane if the needs of its next chunk are met, and every lane that these starts free in turn.
  void start_freed() {
    for (std::size_t next = 0; next < freed_.size(); ++next) {
      const auto lane = freed_[next];
      is_freed_[lane] = false;
      if (is_busy_[lane] || ended_[lane] == lanes_.num_chunks || !has_needs(lane)) continue;
      is_busy_[lane] = true;
      starts_[lane * lanes_.num_chunks + ended_[lane]] = now_;
      if (lanes_.alpha_s[lane] > 0) {
        events_.add({now_ + lanes_.alpha_s[lane], lane});
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
    const auto stream = streams_.of_lane(lane);
    if (stream == none || lanes_.nbytes[lane] <= 0) {
      end(lane);
      return;
    }
    begun_.push_back(lane);
  }

  // Chunks that begin at the same time join in one go, so that no rounding error orders them.
  void join_streams() {
    for (const auto lane : begun_) {
      const auto stream = streams_.of_lane(lane);
      Flow& flow = flows_[stream];
      advance(flow);
      goal_[lane] = flow.progress + 1;
      behind_[lane] = none;
      (flow.first == none ? flow.first : behind_[flow.last]) = lane;
      flow.last = lane;
      resize(stream);
    }
    begun_.clear();
  }

  void end_first(std::int32_t stream) {
    Flow& flow = flows_[stream];
    const auto lane = flow.first;
    flow.progress = goal_[lane];
    // The exact end, not `now_`: chunks that end together within `at_once` would otherwise shift all that follow.
    flow.since = flow.end;
    flow.first = behind_[lane];
    flow.queued = never;
    if (flow.first == none) {
      flow = Flow();  // progress begins anew, before it grows so large that parts of a chunk are lost in rounding
    } else {
      schedule(stream);
    }
    resize(stream);
    end(lane);
  }

  void advance(Flow& flow) const {
    flow.progress += flow.rate * (now_ - flow.since);
    flow.since = now_;
  }

  void resize(std::int32_t stream) {
    double nbytes = 0;
    for (auto lane = flows_[stream].first; lane != none; lane = behind_[lane]) nbytes += lanes_.nbytes[lane];
    sharing_.set(stream, nbytes);
  }

  void share() {
    join_streams();
    sharing_.changes([this](std::int32_t stream, double rate) {
      Flow& flow = flows_[stream];
      // Each advance rounds once, so it is skipped if nothing has changed.
      if (rate == flow.rate) return;
      advance(flow);
      flow.rate = rate;
      schedule(stream);
    });
  }

  // Computes when the chunk of a stream's first lane ends. Queues an event only if the queued one would be too late.
  // Rates change far more often than chunks end, so has_next() corrects an event that is too early when it comes up.
  void schedule(std::int32_t stream) {
    Flow& flow = flows_[stream];
    flow.end = flow.since + std::max(goal_[flow.first] - flow.progress, 0.0) / flow.rate;
    if (flow.end >= flow.queued) return;
    const Event event{flow.end, key_of(stream)};
    flow.queued == never ? events_.add(event) : events_.advance(event);
    flow.queued = flow.end;
  }

  // Corrects early events until the first event is due. Returns whether one is left.
  bool has_next() {
    while (!events_.empty() && !is_latency(events_.top())) {
      const Event event = events_.top();
      Flow& flow = flows_[stream_of(event)];
      // Hostile sizes and bandwidths overflow. An infinite end would make a queued event look like none, so it is bounded;
      // an end that is NaN must not correct the event again and again, so the comparison is negated.
      const double end = std::min(flow.end, std::numeric_limits<double>::max());
      if (!(end > event.time)) return true;
      flow.queued = end;
      events_.replace_top({end, event.key});
    }
    return !events_.empty();
  }

  // Keys of events: that a lane's latency is over, and then that the first chunk of a stream ends.
  bool is_latency(const Event& event) const { return event.key < static_cast<std::int32_t>(lanes_.num_lanes); }
  std::int32_t key_of(std::int32_t stream) const { return static_cast<std::int32_t>(lanes_.num_lanes) + stream; }
  std::int32_t stream_of(const Event& event) const { return event.key - static_cast<std::int32_t>(lanes_.num_lanes); }

  void end(std::int32_t lane) {
    stops_[lane * lanes_.num_chunks + ended_[lane]++] = now_;
    is_busy_[lane] = false;
    free(lane);
    const auto task = lanes_.task[lane];
    std::size_t done = ended_[lane];
    // A chunk has arrived when its parts on all routes have.
    for (const auto other : lanes_of_[task]) done = std::min(done, ended_[other]);
    if (done > done_[task]) {
      done_[task] = done;
      for (const auto after : followers_[task]) free(after);
    }
  }

  const Lanes& lanes_;
  double* starts_;
  double* stops_;
  const Streams streams_;
  Sharing sharing_;
  std::vector<Flow> flows_;  // by stream
  Indices behind_;           // by lane: the next one in its stream's flow
  std::vector<double> goal_;  // by lane: the progress of its stream at which its chunk ends
  std::vector<Indices> lanes_of_, followers_;
  std::vector<std::size_t> done_, ended_;
  std::vector<char> is_busy_, is_freed_;
  Indices freed_, begun_;
  Events events_;
  double now_ = 0;
};

}  // namespace

bool run_pipeline(const Lanes& lanes, double* starts, double* stops, bool (*interrupted)()) {
  return Clock(lanes, starts, stops).run(interrupted);
}

}  // namespace treefold
