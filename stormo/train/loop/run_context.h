#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/event.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/observe/records.h>
#include <stormo/plan/step_plan.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/train/checkpoint/run_state.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/step/lane_timer.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/task.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

class ElasticSession;

/// What a worker of server processes leaves to the first one, until it may have to do it itself.
struct LeftToTheFirst {
  CheckpointOptions checkpoint;
  std::int64_t eval_every = 0;
  std::int64_t patience = 0;
  std::vector<EvalSplit> splits;            ///< none where the first one stays the first
  std::optional<std::string> earlier = {};  ///< the run whose checkpoints are overwritten
};

/// The arguments of a Trainer; borrowed by the run.
struct RunSetup {
  comm::Communicator& world;
  Task task;
  std::shared_ptr<const data::Dataset> train;
  std::vector<EvalSplit> splits;
  TrainerOptions options;
  plan::StepPlan plan;
  std::vector<observe::DataRecord> data_records = {};
  std::vector<std::string> accepted_changes = {};  ///< see Trainer::accept_changes()
  observe::RunObserver* observer = nullptr;
  Sink* sink = nullptr;
  DoneAction done = {};
  server::Facts facts = {};  ///< of run_facts(), for a worker of server processes
  std::optional<LeftToTheFirst> left = {};
  std::int64_t verify_state = 0;                             ///< see Trainer::verify_state()
  std::int64_t freeze_after = 0;                             ///< see Trainer::freeze_after()
  std::function<Result<observe::RunObserver*>()> lead = {};  ///< see Trainer::on_lead()
  ElasticSession* elastic = nullptr;                         ///< see Trainer::set_elastic()
  /// In an epoch of pipelines (docs/elastic.md); nothing: the ranks are those of the mesh.
  std::optional<MeshRanks> mesh_ranks = {};
};

/// Whether something that is done in every n steps is done after this one; 0: never.
inline bool is_due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

/// What the parts of a run have in common: its arguments, and how far it is.
struct RunContext {
  /// `setup` is borrowed. Events of the world and of the run go to its sink.
  explicit RunContext(RunSetup& setup);

  observe::RunObserver& observer() const;
  void warn(std::string kind, std::string message) const;
  Rank mesh_rank() const;  ///< of this rank in the mesh of the plan
  int hosts() const;       ///< of the ranks, or of the workers of server processes
  /// Whether each rank has columns of the samples, so that ranks evaluate together, with parts of
  /// the model.
  bool has_columns() const { return setup.plan.labels >= 0; }
  double rate_of(std::int64_t step) const;
  /// The next step after which all ranks do something together, or need equal parameters.
  std::int64_t next_common_step() const;

  RunSetup& setup;
  comm::Communicator& world;
  const TrainerOptions& options;
  data::Sampler sampler;
  std::int64_t steps;  ///< of the whole run
  RunState state;
  LaneTimer lanes;
  observe::EndRecord end;
  std::int64_t first_sample = 0;
  double learning_rate = 0;
  double step_loss = std::numeric_limits<double>::quiet_NaN();  ///< of the last step; NaN: unknown
  std::optional<double> gradient_norm = {};  ///< likewise, where ranks train in lock step
  bool leads;      ///< of processes without a common world: evaluates, saves, and reports
  int signal = 0;  ///< that ends the run; equal on all ranks
};

/// What all ranks know when they have agreed.
struct Agreement {
  double loss_sum = 0;  ///< of all ranks, as `samples`
  std::int64_t samples = 0;
  bool save_now = false;     ///< a rank was asked to
  bool save_failed = false;  ///< in the background; rank 0 knows of it
};

/// The numbers that the ranks add up for it: loss, samples, ranks that were asked to save, failed
/// saves, and for each signal the ranks that received it. With averages there are those that
/// AveragingSchedule needs. Now and then there are those of SlowRankReport, too.
static_assert(kAgreedNumbers == 4 + StopSignal::kSignals.size());

/// Every rank learns the sums over all, and whether any of them was told to stop: then `run` has
/// the signal, and all stop after the same step. `others` are added up with them, in place, and are
/// of the same size on all ranks. A collective.
Result<Agreement> agree_on(RunContext& run, const StepOutcome& mine, std::span<double> others = {});

}  // namespace stormo::train
