// Wrong bits in an elastic run: who has them again and again is no member any more.
#include <stormo/train/run/elastic_run.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stormo/protocol/rolling_check.h>
#include <stormo/train/agreement/minority.h>

namespace stormo::train {
namespace {

using protocol::FaultyRanks;

std::string fault_that_stays() {
  return fmt::format(
      "it had wrong bits {} times within {} steps, so this is a fault that stays; take its host "
      "out of service",
      FaultyRanks::kMost, FaultyRanks::kWithin);
}

}  // namespace

std::string ElasticRun::name_of(Rank rank) const {
  return session_.record().members[static_cast<std::size_t>(rank)].id.identity;
}

// Each counts for itself: it has been there all the time.
std::unique_ptr<StateWatch> ElasticRun::make_watch() {
  if (run_.world.size() == 1) return nullptr;
  const auto leave = [this](Rank rank) {
    if (rank != run_.world.rank()) return;
    session_.say("asks to leave: " + fault_that_stays());
    session_.tell(protocol::LeaveAsked{});
  };
  return StateWatch::create(run_, model_,
                            {.faulty = &session_.kept.faulty,
                             .name = [this](Rank rank) { return name_of(rank); },
                             .leave_out = leave});
}

// The step is done again. A rank whose gradients are wrong each time could not leave behind a step:
// its process ends, and another one takes its place.
Status ElasticRun::note_wrong_gradients(const protocol::AgreeOn& order) {
  std::vector<int> part_of;
  for (const protocol::ElasticEntry& m : session_.record().members) {
    part_of.push_back(static_cast<int>(m.part));
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<Rank> wrong,
                          find_minority(run_.world, part_of, order.gradient_hash));
  std::vector<std::string> names;
  bool am_faulty = false;
  for (const Rank rank : wrong) {
    names.push_back(name_of(rank));
    const auto step = static_cast<std::int64_t>(order.step);
    const bool stays = session_.kept.faulty.note(names.back(), step);
    am_faulty = am_faulty || (stays && rank == run_.world.rank());
  }
  const std::string who =
      wrong.empty()
          ? "averaged gradients differ between ranks, and no majority says which are right"
          : fmt::format("{} had other averaged gradients than most", fmt::join(names, ", "));
  run_.observer().on_warning({.kind = "gradient_mismatch",
                              .step = static_cast<std::int64_t>(order.step),
                              .message = fmt::format("step {} is done again: {}", order.step, who),
                              .fields = {{"names", names}}});
  if (am_faulty) session_.end_process("ends: " + fault_that_stays());
  return {};
}

}  // namespace stormo::train
