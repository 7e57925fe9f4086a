#include <stormo/train/estimate/measure_together.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <ATen/Parallel.h>

#include <stormo/train/estimate/at_once.h>
#include <stormo/train/estimate/measure_step.h>
#include <stormo/train/world/busy_watch.h>

namespace stormo::train {
namespace {

constexpr int kFewest = 3, kMost = 30;  // rounds
/// For which rounds go on.
constexpr std::chrono::duration<double> kWorthwhile{1};
/// A measurement that took longer than this is not repeated.
constexpr std::chrono::seconds kEnough{5};

Result<std::vector<StepMeasurement>> measured(const RanksOfHost& host, const Task& task,
                                              const data::Dataset& dataset,
                                              const std::vector<Wanted>& wanted,
                                              std::int64_t memory, int rounds) {
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      at_once(host.ranks, [&](int, const Meet& meet) -> Result<std::string> {
        at::set_num_threads(host.threads);
        STORMO_ASSIGN_OR_RETURN(
            const std::vector<StepMeasurement> all,
            measure_rounds(task, dataset, wanted, memory / host.ranks, rounds, meet));
        return to_text(all);
      }));
  std::vector<StepMeasurement> mean;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    STORMO_ASSIGN_OR_RETURN(std::vector<StepMeasurement> of_rank, measurements_of(texts[r]));
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      if (r == 0) {
        mean.push_back(std::move(of_rank[i]));
      } else {
        mean[i] = between(mean[i], of_rank[i], 1 / static_cast<double>(r + 1));
      }
    }
  }
  return mean;
}

}  // namespace

Result<std::vector<StepMeasurement>> measure_rounds(const Task& task, const data::Dataset& dataset,
                                                    const std::vector<Wanted>& wanted,
                                                    std::int64_t memory, int rounds,
                                                    const std::function<void()>& meet) {
  const int threads = at::get_num_threads();
  const BusyWatch waits(threads, [](const std::string&) {});  // as in a run
  std::vector<std::vector<StepMeasurement>> all(wanted.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      STORMO_ASSIGN_OR_RETURN(StepMeasurement now,
                              measure_step(task, dataset, wanted[i].options, wanted[i].samples,
                                           {.in_parts = wanted[i].in_parts && round == 0,
                                            .memory = memory,
                                            .before_step = meet}));
      all[i].push_back(std::move(now));
    }
  }
  std::vector<StepMeasurement> out;
  for (const std::vector<StepMeasurement>& of_all_rounds : all) {
    out.push_back(threads == 1 ? medians(of_all_rounds) : shortest(of_all_rounds));
  }
  return out;
}

Result<std::vector<StepMeasurement>> measure_together(const RanksOfHost& host, const Task& task,
                                                      const data::Dataset& dataset,
                                                      const std::vector<Wanted>& wanted,
                                                      std::int64_t memory) {
  const auto begin = std::chrono::steady_clock::now();
  STORMO_ASSIGN_OR_RETURN(std::vector<StepMeasurement> out,
                          measured(host, task, dataset, wanted, memory, 1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (took > kEnough) return out;
  const int rounds = static_cast<int>(kWorthwhile / took);
  return measured(host, task, dataset, wanted, memory, std::clamp(rounds, kFewest - 1, kMost));
}

}  // namespace stormo::train
