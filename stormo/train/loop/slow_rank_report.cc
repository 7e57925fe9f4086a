#include <stormo/train/loop/slow_rank_report.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <stormo/plan/project.h>
#include <stormo/train/elastic/elastic_session.h>

namespace stormo::train {
namespace {

using protocol::kNumStepParts;
using protocol::SlowRanks;

/// Of a sample: what is slow for less than some of them is not worth a line.
constexpr double kLeastSeconds = 0.1;
constexpr double kMostSteps = 1e6;
/// The kernel counts how long bytes are under way in its own units.
constexpr double kKernelSeconds = 0.01;

/// By rank: equal numbers where ranks compute the same layers for as many samples.
std::vector<int> work_of_ranks(const RunSetup& setup, int ranks) {
  std::vector<int> work;
  // in later epochs of pipelines ranks do each other's work
  const bool is_rerouted =
      setup.elastic != nullptr && setup.elastic->is_open() && plan::num_stages(setup.plan.mesh) > 1;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const plan::Part data = plan::data_part(setup.plan.mesh, rank);
    const bool one_more = data.index < setup.options.global_batch % data.parts;
    const int layers =
        setup.plan.labels >= 0 ? rank : plan::stage_of(setup.plan.mesh, rank);  // own columns
    work.push_back(is_rerouted ? rank : 2 * layers + (one_more ? 1 : 0));
  }
  return work;
}

}  // namespace

SlowRankReport::SlowRankReport(RunContext& run, const StepLog& log)
    : run_(run),
      log_(log),
      ranks_(static_cast<std::size_t>(run.world.size())),
      parts_(run.setup.sink),
      sent_(transport::bulk_sent()) {
  if (ranks_ == 1) return;
  run_.lanes.pass_to(&parts_);
  if (run.world.rank() == 0) slow_.emplace(work_of_ranks(run.setup, run.world.size()));
}

SlowRankReport::~SlowRankReport() { run_.lanes.pass_to(run_.setup.sink); }

void SlowRankReport::end_step() {
  if (ranks_ == 1 || ++steps_ < steps_of_sample_) return;
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  Sample& sample = samples_.emplace_back();
  if (samples_.size() > SlowRanks::kBlock) samples_.pop_front();
  const double logged = log_.times().seconds;
  sample.seconds = (logged - std::exchange(logged_seconds_, logged)) / steps;
  const transport::BulkSent sent = transport::bulk_sent();
  sample.parts = parts_.take();
  const transport::BulkSent in_sample = sent.since(std::exchange(sent_, sent));
  sample.parts[static_cast<std::size_t>(protocol::StepPart::kLink)] = in_sample.seconds();
  sample.sent = static_cast<double>(in_sample.bytes) / steps;
  for (double& seconds : sample.parts) seconds /= steps;
}

std::span<double> SlowRankReport::numbers() {
  if (samples_.size() < SlowRanks::kBlock) return {};
  numbers_.assign(SlowRanks::kBlock * size_of_sample(), 0);
  const auto rank = static_cast<std::size_t>(run_.world.rank());
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const std::span<double> mine = std::span(numbers_).subspan(i * size_of_sample());
    std::ranges::copy(samples_[i].parts, mine.subspan(rank * kOfRank).begin());
    mine[rank * kOfRank + kNumStepParts] = samples_[i].sent;
    if (rank == 0) mine[size_of_sample() - 1] = samples_[i].seconds;
  }
  return numbers_;
}

void SlowRankReport::added_up(const std::vector<std::string>& hosts) {
  if (numbers_.empty()) return;
  const std::vector<double> numbers = std::exchange(numbers_, {});
  samples_.clear();
  double shortest = std::numeric_limits<double>::infinity();
  observe::SlowRanksRecord record{.step = run_.state.step};
  for (std::size_t i = 0; i < SlowRanks::kBlock; ++i) {
    const std::span<const double> of_all =
        std::span(numbers).subspan(i * size_of_sample(), size_of_sample());
    shortest = std::min(shortest, of_all.back());
    if (slow_) note(of_all, hosts, record);
  }
  if (!record.changes.empty()) run_.observer().on_slow_ranks(record);
  const double steps = std::ceil(kLeastSeconds / std::max(shortest, kLeastSeconds / kMostSteps));
  steps_of_sample_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
}

void SlowRankReport::note(std::span<const double> of_all, const std::vector<std::string>& hosts,
                          observe::SlowRanksRecord& record) {
  protocol::StepSample sample;
  sample.ranks.resize(ranks_);
  sample.seconds = of_all.back();
  sample.least[static_cast<std::size_t>(protocol::StepPart::kLink)] =
      kKernelSeconds / static_cast<double>(steps_of_sample_);
  for (std::size_t r = 0; r < ranks_; ++r) {
    const std::span<const double> of_rank = of_all.subspan(r * kOfRank, kOfRank);
    std::ranges::copy(of_rank.first<kNumStepParts>(), sample.ranks[r].begin());
    sample.sent.push_back(of_rank.back());
  }
  for (const auto& [rank, begins] : slow_->add(std::move(sample))) {
    record.changes.push_back(
        {.rank = rank.rank,
         .host = hosts.empty() ? "" : hosts[static_cast<std::size_t>(rank.rank)],
         .part = std::string(to_string(rank.part)),
         .seconds = rank.seconds,
         .expected = rank.expected,
         .ratio = rank.ratio(),
         .without = rank.without,
         .begins = begins});
  }
}

}  // namespace stormo::train
