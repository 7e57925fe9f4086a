#include <stormo/protocol/server/portions.h>

#include <algorithm>
#include <utility>

namespace stormo::protocol {
namespace {

constexpr int kWorkerBits = 16;
constexpr std::uint64_t kWorkerMask = (std::uint64_t{1} << kWorkerBits) - 1;

}  // namespace

PortionState PortionState::unpack(std::uint64_t word) {
  return {.batch = static_cast<std::uint32_t>(word >> 2 * kWorkerBits),
          .first = static_cast<int>(word >> kWorkerBits & kWorkerMask) - 1,
          .second = static_cast<int>(word & kWorkerMask) - 1};
}

std::uint64_t PortionState::pack() const {
  return std::uint64_t{batch} << 2 * kWorkerBits |
         static_cast<std::uint64_t>(first + 1) << kWorkerBits |
         static_cast<std::uint64_t>(second + 1);
}

PortionChoice choose_portion(std::span<const PortionView> portions, std::uint32_t batch, int worker,
                             TimePoint now, Duration usual) {
  PortionChoice out;
  std::optional<std::size_t> oldest;
  for (std::size_t p = 0; p < portions.size(); ++p) {
    const PortionState& state = portions[p].state;
    if (state.batch != batch) continue;
    if (state.first < 0) return {.portion = p};
    if (state.second >= 0 || state.first == worker) continue;
    if (!oldest || portions[p].begun < portions[*oldest].begun) oldest = p;
  }
  if (!oldest || usual <= Duration::zero()) return out;
  const auto patience = std::chrono::duration_cast<Duration>(usual * kLatePortion);
  const TimePoint late = portions[*oldest].begun + patience;
  if (now >= late) {
    out.portion = oldest;
  } else {
    out.again = late;
  }
  return out;
}

PortionState taken(PortionState state, int worker) {
  (state.first < 0 ? state.first : state.second) = worker;
  return state;
}

PortionState given_up(PortionState state, int worker) {
  if (state.first == worker) state.first = std::exchange(state.second, -1);
  if (state.second == worker) state.second = -1;
  return state;
}

PortionState done(const PortionState& state) { return {.batch = state.batch + 1}; }

}  // namespace stormo::protocol
