#include <cli/strads/numbers_program.h>

#include <stormo/strads/round_plan.h>

namespace stormo::cli {

Result<plan::StepPlan> NumbersProgram::plan(int workers) {
  STORMO_ASSIGN_OR_RETURN(const Made made, make(1));
  STORMO_ASSIGN_OR_RETURN(const auto worker, made.worker(0, workers));
  return strads::round_plan(worker->variables(), workers, made.schedule, loop);
}

/// All that can be refused before the first round, by all ranks together.
Status NumbersProgram::begin(comm::Communicator& world) {
  std::vector<comm::Fact> facts;
  const auto make_ready = [&]() -> Status {
    STORMO_ASSIGN_OR_RETURN(Made made, make(world.local_size()));
    STORMO_ASSIGN_OR_RETURN(auto workers,
                            strads::Workers::make(world, a_.virtual_workers, made.worker));
    if (world.size() > 1) facts = made.facts();
    made.worker = nullptr;  // both hold the data
    made.facts = nullptr;
    Wrong none;
    STORMO_ASSIGN_OR_RETURN(
        auto rounds, strads::begin_rounds(std::move(workers), made.schedule, made.conflicts, loop,
                                          virtual_workers_of(a_, none)));
    rounds_.emplace(std::move(rounds));
    return {};
  };
  const Status ready = make_ready();
  return comm::check_agreement(world, std::move(facts), ready);
}

Result<std::uint64_t> NumbersProgram::values_hash() {
  STORMO_ASSIGN_OR_RETURN(values_, rounds_->workers().values());
  return strads::hash_of(values_.common, strads::hash_of(values_.rows));
}

}  // namespace stormo::cli
