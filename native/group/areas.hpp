// Memory for results that ranks share. Only the last arriver of a first meeting changes the table, so it needs no lock.
#pragma once

#include "segment.hpp"

namespace treefold::group {

class Areas {
 public:
  Areas(std::byte* base, int fd, const Layout& layout) : base_(base), fd_(fd), layout_(layout) {}

  // Puts an area of at least `nbytes` into the choice: one that ranks may keep, if they want to and there is room, else
  // the scratch area. Returns false where there is no memory.
  bool choose(std::size_t nbytes, bool is_kept, Choice& choice);

 private:
  Control& control() const { return *reinterpret_cast<Control*>(base_); }
  bool is_leased(std::size_t index) const;
  bool lease(std::size_t nbytes, Choice& choice);
  std::size_t gap(std::size_t nbytes) const;
  void drop_unleased();
  bool use_scratch(std::size_t nbytes, Choice& choice);

  std::byte* const base_;
  const int fd_;
  const Layout layout_;
};

}  // namespace treefold::group
