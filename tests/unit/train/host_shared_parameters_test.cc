// What one copy of the parameters per host says when the Arena has no room for it.
#include <stormo/train/store/host_shared_parameters.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

/// Takes all but `spare` bytes of the Arena, in blocks so small that no memory is touched.
void fill_arena(transport::Arena& arena, std::uint64_t spare) {
  for (std::size_t block = std::size_t{128} << 10; block >= 64; block /= 2) {
    while (arena.stats().touched_bytes + block + spare <= arena.capacity()) {
      if (arena.allocate(block) == nullptr) break;
    }
  }
}

std::vector<NamedParameter> small_and_large(std::int64_t small, std::int64_t large) {
  return {{"bias", torch::zeros({small}, torch::requires_grad())},
          {"weight", torch::zeros({large}, torch::requires_grad())}};
}

/// What `ranks` ranks get whose rank `full` has `spare` bytes left, by rank; "" for no failure.
std::vector<std::string> share_on(int ranks, int full, std::uint64_t spare) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  test::on_ranks(ranks, [&](comm::Communicator& world) {
    if (world.rank() == full) fill_arena(world.arena(), spare);
    try {
      const HostSharedParameters shared(world, world, small_and_large(1000, 500'000));
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code(), Code::kExhausted) << e.what();
      messages[static_cast<std::size_t>(world.rank())] = e.what();
      world.fail(e.status());
    }
  });
  return messages;
}

void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
}

TEST(HostSharedParameters, AFullArenaIsNamedWithWhatWasNeededAndWhatHelps) {
  const auto messages = share_on(2, /*full=*/0, /*spare=*/1 << 20);
  for (const std::string& message : messages) {
    expect_part(message, "no room in the Arena of local rank 0 for 1.9 MiB of parameters");
    expect_part(message, "strategy \"fsdp\"");
  }
  expect_part(messages[0], "of 256 MiB are in use");
  // Rank 1 knows no figures of rank 0's Arena, unless rank 0 failed the group before rank 1 looked.
  const std::string told = messages[0].substr(messages[0].find("no room"));
  if (messages[1].find("in use") != std::string::npos) expect_part(messages[1], told);
}

TEST(HostSharedParameters, ARankWithoutRoomForItsGradientsEndsAll) {
  for (const std::string& message : share_on(2, /*full=*/1, /*spare=*/0)) {
    expect_part(message,
                "no room in the Arena of local rank 1 for 3.9 KiB of the gradient of 'bias'");
    expect_part(message, "of 256 MiB are in use");
  }
}

// The rank's own tensors do not lie in the Arena here, as when it is full: each must be copied.
TEST(HostSharedParameters, AGradientThatCannotBeShownIsNamed) {
  test::on_ranks(2, [](comm::Communicator& world) {
    const std::vector<NamedParameter> mine = small_and_large(1000, 500'000);
    HostSharedParameters shared(world, world, mine);
    mine[1].tensor.mutable_grad() = torch::ones({500'000});
    const Status status = shared.publish(1);
    EXPECT_EQ(status.code(), Code::kExhausted);
    expect_part(status.message(), "for 1.9 MiB of the gradient of 'weight'");
  });
}

}  // namespace
}  // namespace stormo::train
