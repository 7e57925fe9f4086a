#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include <stormo/base/clock.h>
#include <stormo/comm/work.h>

namespace stormo::train {

/// For the end of who has started them: waits some seconds for what is under way. `all`: a list of
/// what has its `works` and their memory. If they are not over in time, nobody knows who still
/// reads or writes that memory, and it is never freed. Returns whether they are.
template <class List>
bool wait_or_keep(List& all) {
  const Deadline by = Deadline::after(std::chrono::seconds(10));
  bool over = true;
  for (auto& one : all) {
    for (comm::Work& w : one.works) static_cast<void>(w.wait(by));
    over = over && std::ranges::all_of(one.works, &comm::Work::test);
  }
  if (!over) new auto(std::move(all));  // NOLINT: never freed, on purpose
  return over;
}

}  // namespace stormo::train
