#include <stormo/train/loop/population_report.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <stormo/train/evaluation/evaluate.h>

namespace stormo::train {

Judge judge_of(const RunSetup& setup) {
  const auto split = std::ranges::find(setup.splits, "validation", &EvalSplit::name);
  if (split == setup.splits.end()) return {};
  const std::int64_t samples = split->dataset->size();
  const std::int64_t member = setup.world.rank(), members = setup.world.size();
  const std::int64_t first = samples * member / members, last = samples * (member + 1) / members;
  const auto evaluate = [&setup, &split = *split](std::int64_t begin, std::int64_t end) {
    return evaluate_own(setup.task, split, begin, end);
  };
  return {.in_tournament = [evaluate, first, last] { return evaluate(first, last).loss; },
          .of_all = [evaluate, samples]() -> Judge::Verdict {
            const OwnEvaluation own = evaluate(0, samples);
            return {.loss = own.loss, .predicted = own.predicted};
          }};
}

Result<observe::PopulationRecord> population_record(comm::Communicator& world,
                                                    const PopulationStore& population) {
  std::int64_t mine = population.taken();
  std::vector<std::int64_t> taken(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(comm::Buffer{&mine, 1, DType::kInt64}, taken));
  const PopulationStore::Ages& ages = population.ages();
  const auto uses = static_cast<double>(std::max<std::int64_t>(1, ages.uses));
  return observe::PopulationRecord{.exchanges = population.exchanges(),
                                   .taken = std::move(taken),
                                   .mean_age = static_cast<double>(ages.sum) / uses,
                                   .max_age = ages.max,
                                   .best = population.best()};
}

}  // namespace stormo::train
