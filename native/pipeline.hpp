// The clock of the simulator. A lane carries one chunk after another; lanes share resources max-min fairly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treefold {

// Lanes belong to tasks. In the flat arrays, the resources of lane l begin at resource_start[l], and the needs of task t at
// need_start[t]. Before chunk c, need i waits for need_counts[i · num_chunks + c] chunks of need_task[i]. The caller has
// checked that all indices are in range.
struct Lanes {
  std::size_t num_lanes, num_tasks, num_resources, num_chunks;
  const std::int32_t* task;
  const double* nbytes;   // of one chunk
  const double* alpha_s;  // before each chunk
  const std::int32_t* resource_start;
  const std::int32_t* resources;
  const std::int32_t* need_start;
  const std::int32_t* need_task;
  const std::int32_t* need_counts;
  const double* capacities;  // bytes per second
};

// Fills starts and stops, num_lanes × num_chunks seconds each; times of chunks that never move stay as they were. The run
// calls `interrupted` now and then, and ends if it returns true. Returns whether it ran to its end.
bool run_pipeline(const Lanes& lanes, double* starts, double* stops, bool (*interrupted)());

}  // namespace treefold
