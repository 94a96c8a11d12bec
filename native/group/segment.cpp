#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <new>
#include <string>

namespace treefold::group {

namespace {

constexpr std::uint64_t magic = 0x31646c6f66656572;  // "reefold1"
constexpr std::size_t most_half_bytes = std::size_t{1} << 20, least_half_bytes = std::size_t{64} << 10;
constexpr std::size_t staging_bytes = std::size_t{4} << 20;  // of all ranks: staging lives in the caches, or is slow

constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

// Where a version of control groups says how much memory a group may use, and does.
struct ControlGroups {
  const char* controller;  // in its line of /proc/self/cgroup
  const char* root;
  const char* limit;
  const char* used;
  const char* prefix;  // of statistics that include those of a group's children
};
constexpr ControlGroups versions[] = {
    {"", "/sys/fs/cgroup", "/memory.max", "/memory.current", ""},
    {"memory", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"},
};

// Returns the number in a file, the most there is for "max" or no file.
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : no_limit;
}

// Returns the bytes of files that the system keeps in memory for a group, and gives back before it refuses anything.
std::uint64_t reclaimable_in(const std::string& folder, const std::string& prefix) {
  std::ifstream file(folder + "/memory.stat");
  std::uint64_t bytes = 0, number = 0;
  for (std::string name; file >> name >> number;) {
    if (name == prefix + "inactive_file" || name == prefix + "active_file") bytes += number;
  }
  return bytes;
}

// Returns the bytes that a group and its parents may still allocate.
std::uint64_t room_in(const ControlGroups& version, std::string path) {
  std::uint64_t room = no_limit;
  for (;; path.resize(path.rfind('/'))) {
    const std::string folder = version.root + path;
    const std::uint64_t limit = number_in(folder + version.limit);
    if (limit != no_limit) {
      const std::uint64_t used = number_in(folder + version.used);
      const std::uint64_t kept = used - std::min(used, reclaimable_in(folder, version.prefix));
      room = std::min(room, limit - std::min(limit, kept));
    }
    if (path.empty() || path == "/") return room;
  }
}

// Returns the bytes that this process may still allocate by its control groups.
std::uint64_t room_in_control_groups() {
  std::ifstream file("/proc/self/cgroup");
  std::uint64_t room = no_limit;
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    for (const ControlGroups& version : versions) {
      if (controllers.find("," + std::string(version.controller) + ",") == std::string::npos) continue;
      room = std::min(room, room_in(version, line.substr(second + 1)));
    }
  }
  return room;
}

// Returns 0 or an error number.
int allocate_pages(int fd, std::size_t offset, std::size_t nbytes) {
  for (;;) {
    const int error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(nbytes)) == 0 ? 0 : errno;
    // A signal cuts a large allocation short; what is there already is skipped the next time.
    if (error != EINTR) return error;
  }
}

}  // namespace

Layout Layout::of(std::size_t ranks, std::size_t result_bytes, std::size_t arena_bytes) {
  const std::size_t half = std::clamp(staging_bytes / (2 * ranks), least_half_bytes, most_half_bytes);
  return {ranks, round_up(result_bytes, page_bytes), round_up(arena_bytes, page_bytes), round_up(half, page_bytes)};
}

int create_segment(const Layout& layout) {
  // Without a name, so that nothing is left behind whoever dies, and no other process can open it.
  const int fd = memfd_create("treefold", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  int error = 0;
  // Sealed before anybody else has the descriptor: a rank that shrinks the file would kill the others by SIGBUS,
  // wherever they touch it. F_SEAL_SEAL keeps ranks from adding seals, such as one against writing, later.
  if (ftruncate(fd, static_cast<off_t>(layout.total())) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    error = errno;
  }
  if (error == 0) error = allocate(nullptr, fd, 0, layout.allocated());
  if (error == 0) {
    void* const page = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
      error = errno;
    } else {
      // Begins the lifetime of the atomics. The other ranks get the descriptor by a message after this, which orders it
      // for them.
      Control* const control = new (page) Control{};
      control->magic = magic;
      control->ranks = layout.ranks;
      // As if operation 0 had been committed: operation 1 enters from there like any other.
      control->decision = Decision{0, Phase::committed, false, Cause::none, 0, 0}.word();
      munmap(page, page_bytes);
    }
  }
  if (error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

std::byte* map_segment(int fd, const Layout& layout) {
  // A descriptor from elsewhere: a file that is shorter than the layout would end in a bus error.
  if (lseek(fd, 0, SEEK_END) != static_cast<off_t>(layout.total()) || (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  void* const base = mmap(nullptr, layout.total(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  // Results and arenas are of no use in a core dump, and may be larger than the disk that takes it.
  madvise(base, layout.total(), MADV_DONTDUMP);
  madvise(base, layout.total(), MADV_HUGEPAGE);  // a wish, which the system's setting for shared memory may grant
  const auto* const control = static_cast<const Control*>(base);
  if (control->magic == magic && control->ranks == layout.ranks) return static_cast<std::byte*>(base);
  munmap(base, layout.total());
  errno = EINVAL;
  return nullptr;
}

void unmap_segment(std::byte* base, const Layout& layout) { munmap(base, layout.total()); }

int allocate(std::byte* base, int fd, std::size_t offset, std::size_t nbytes) {
  // The kernel counts the pages of a memfd to the group of whoever allocates them, and fallocate beyond its limit does
  // not fail: it ends a process. The look ahead races with others in the group, and narrows that, but cannot exclude
  // it.
  if (nbytes > room_in_control_groups()) return ENOMEM;
#if defined(MADV_POPULATE_WRITE)
  // By the mapping, whose pages may be huge by madvise alone; fallocate, which knows of no mapping, does the rest, and
  // says what is missing.
  if (base != nullptr && nbytes >= huge_page_bytes) {
    madvise(base + offset, nbytes / huge_page_bytes * huge_page_bytes, MADV_POPULATE_WRITE);
  }
#else
  static_cast<void>(base);
#endif
  const int error = allocate_pages(fd, offset, nbytes);
  if (error != 0) release(fd, offset, nbytes);  // what was allocated of it
  return error;
}

void release(int fd, std::size_t offset, std::size_t nbytes) {
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(nbytes));
}

}  // namespace treefold::group
