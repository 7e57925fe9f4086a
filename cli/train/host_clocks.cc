#include <cli/train/host_clocks.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace stormo::cli {
namespace {

constexpr std::uint32_t kTag = 0x636c;
constexpr int kRounds = 32;

std::int64_t now(const Clock& clock) { return clock.now().time_since_epoch().count(); }

Status send(comm::Communicator& world, std::int64_t value, Rank to) {
  return world.send({&value, 1, DType::kInt64}, to, kTag);
}

Result<std::int64_t> receive(comm::Communicator& world, Rank from) {
  std::int64_t value = 0;
  STORMO_RETURN_IF_ERROR(world.recv({&value, 1, DType::kInt64}, from, kTag));
  return value;
}

/// On rank 0.
Status answer(comm::Communicator& world, const Clock& clock, Rank asker) {
  for (int i = 0; i < kRounds; ++i) {
    STORMO_RETURN_IF_ERROR(receive(world, asker).status());
    STORMO_RETURN_IF_ERROR(send(world, now(clock), asker));
  }
  return {};
}

/// Of the fastest answer: rank 0 has read its clock in the middle of it.
Result<std::int64_t> ask(comm::Communicator& world, const Clock& clock) {
  std::int64_t fastest = std::numeric_limits<std::int64_t>::max(), offset = 0;
  for (int i = 0; i < kRounds; ++i) {
    const std::int64_t asked = now(clock);
    STORMO_RETURN_IF_ERROR(send(world, asked, 0));
    STORMO_ASSIGN_OR_RETURN(const std::int64_t theirs, receive(world, 0));
    const std::int64_t took = now(clock) - asked;
    if (took >= fastest) continue;
    fastest = took;
    offset = theirs - (asked + took / 2);
  }
  return offset;
}

}  // namespace

Result<observe::ClockReading> read_clock_of_rank_0(comm::Communicator& world, const Clock& clock) {
  std::int64_t mine = 0;
  std::vector<Rank> first_ranks;  // by host
  for (Rank first = 0; const int ranks : world.ranks_per_host()) {
    first_ranks.push_back(first);
    if (first > 0 && world.rank() == 0) STORMO_RETURN_IF_ERROR(answer(world, clock, first));
    if (first > 0 && world.rank() == first) {
      STORMO_ASSIGN_OR_RETURN(mine, ask(world, clock));
    }
    first += ranks;
  }
  std::vector<std::int64_t> of_ranks(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(
      world.all_gather({&mine, 1, DType::kInt64}, {of_ranks.data(), world.size(), DType::kInt64}));
  const Rank first = first_ranks[static_cast<std::size_t>(world.cross_rank())];
  return observe::ClockReading{now(clock), of_ranks[static_cast<std::size_t>(first)]};
}

}  // namespace stormo::cli
