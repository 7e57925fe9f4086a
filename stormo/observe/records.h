#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <stormo/base/event.h>
#include <stormo/observe/step_times.h>

namespace stormo::observe {

/// A key of the recipe that has another value than when the checkpoint was written; both as JSON.
struct ChangeRecord {
  std::string key{}, before{}, now{};
};

/// What was taken of one split of the data, and what was left out.
struct DataRecord {
  /// One reason, such as "ending .webp", and the first file or folder of those that it is true of.
  struct LeftOut {
    std::string why{};
    std::int64_t count = 0;
    std::string first{};
  };
  std::string split{};  ///< "training", "validation", "test"
  std::int64_t samples = 0;
  std::optional<std::int64_t>
      classes{};                        ///< that have samples in it; empty: targets are no classes
  std::optional<std::int64_t> files{};  ///< that were found in a folder
  std::vector<LeftOut> left_out{};
};

/// First record of a run.
struct StartRecord {
  std::string recipe{};  ///< name of the recipe, or "program" for a library user's own
  std::string strategy{};
  int ranks = 1;
  int hosts = 1;
  std::int64_t parameters = 0;
  std::int64_t steps = 0;       ///< steps of the whole run
  std::int64_t first_step = 0;  ///< > 0 after --resume
  std::int64_t global_batch = 0;
  std::uint64_t seed = 0;
  std::string checkpoint{};             ///< folder, empty when none is written
  std::vector<DataRecord> data{};       ///< empty: a program's own
  std::vector<ChangeRecord> changed{};  ///< since the checkpoint from which it goes on
};

/// What a user should know of a run that goes on.
struct WarningRecord {
  /// "loss_grown", "at_chance", "replica_mismatch": all are in docs/recipes.md
  std::string kind{};
  std::int64_t step = 0;
  std::string message{};
  /// What a program wants to know of it besides, by name; of some kinds. Empty: it is not known.
  using Value = std::variant<std::monostate, std::int64_t, std::string, std::vector<std::string>>;
  std::vector<std::pair<std::string, Value>> fields{};
};

/// Ranks that have become slow, or are so no more (protocol::SlowRanks).
struct SlowRanksRecord {
  struct Change {
    int rank = 0;
    std::string host{};   ///< with several hosts
    std::string part{};   ///< "compute", "data", "link", "optimizer"
    double seconds = 0;   ///< that it takes in a step
    double expected = 0;  ///< as long as the others take
    double ratio = 1;     ///< of the two, at most 100
    double without = 1;   ///< time of a step if it took as long as the others, as a share of now
    bool begins = true;   ///< else it is as fast as the others again
  };
  std::int64_t step = 0;
  std::vector<Change> changes{};
};

/// Which classes or labels the samples of each rank have in an epoch; only with a sharding that was
/// chosen.
struct ShardingRecord {
  std::string sharding{};                           ///< "stratified"
  std::vector<std::int64_t> samples{};              ///< by rank
  std::vector<std::vector<std::int64_t>> counts{};  ///< by rank and class
  std::vector<double> chi_square{};                 ///< by rank, against the classes of the whole
  int degrees_of_freedom = 0;
};

/// One logged training step; the loss is the global weighted mean of that step.
struct StepRecord {
  std::int64_t step = 0;  ///< 1 after the first step
  std::int64_t steps = 0;
  double epoch = 0;  ///< with a fraction
  double loss = 0;
  double learning_rate = 0;
  double samples_per_s = 0;  ///< since the previous logged step
  double eta_s = 0;
  std::array<double, kNumLanes> share{};  ///< of wall time since the previous logged step, by Lane
  /// The same of each rank; empty with one rank, where workers do not wait for each other, and
  /// between logged steps.
  std::vector<std::array<double, kNumLanes>> rank_shares{};
  int slowest = -1;            ///< rank that computed and loaded longest; -1: rank_shares is empty
  std::string slowest_host{};  ///< with several hosts

  // Of the whole run so far.
  std::int64_t samples = 0;
  std::optional<double> gradient_norm{};  ///< of this step, before clipping; where it is computed
  StepTimes times{};                      ///< of the steps since the start or the resume
  std::array<double, kNumLanes> lane_seconds{};  ///< of this rank, since then
  std::uint64_t bytes_sent = 0;  ///< between hosts, by collectives of this rank, since then
  std::string checkpoint{};      ///< path of the newest that is complete; empty: none
};

struct EvalRecord {
  std::string split{};  ///< "validation", "test"
  std::int64_t step = 0;
  double loss = 0;
  std::optional<double> accuracy{};
  std::optional<double> mae{};  ///< mean absolute error, where targets are numbers
  std::optional<double> r2{};   ///< 1 - squared errors / variance of the targets
  /// Of classifiers, where they were asked for.
  std::optional<double> f1{};   ///< mean over the classes
  std::optional<double> auc{};  ///< of two classes: area under the ROC curve
  std::vector<std::string> classes{};
  std::vector<std::vector<std::int64_t>> confusion{};  ///< samples by class and predicted class
  /// Of the members of a population, of the best of which the other numbers are.
  std::vector<double> member_losses{};
  /// Of members that classify: the share of samples of which two predict other classes.
  std::optional<double> churn{};
  std::int64_t samples = 0;
};

/// A checkpoint that could not be written. Training continues unless the limit of failures is
/// reached.
struct SaveFailedRecord {
  std::int64_t step = 0;  ///< step of the checkpoint
  int failures = 1;       ///< in a row
  int max_failures = 3;   ///< the number that ends the run
  std::string error{};
};

/// Staleness of the gradients of one worker, with parameter servers: the number of updates between
/// the read of the parameters and the update with the gradient.
struct StalenessRecord {
  std::int64_t gradients = 0;  ///< that were used, counted at each server
  double mean = 0;
  std::int64_t max = 0;
  std::vector<std::int64_t> histogram{};  ///< by staleness; without zeros at its end
};

/// What a server process has counted.
struct ServerRecord {
  std::uint64_t bytes = 0;              ///< of the parameters that it holds
  std::vector<std::uint64_t> pulls{};   ///< by worker; a pull from two shards counts twice
  std::vector<std::uint64_t> pushes{};  ///< by worker; likewise
};

/// A worker of server processes that was lost.
struct LostWorkerRecord {
  int worker = 0;
  std::uint32_t lost = 1;       ///< how often
  std::uint32_t came_back = 0;  ///< how often
};

/// Averages of parameters that differed between ranks. The distance at an average is the consensus
/// distance before it: sqrt(mean over ranks of |w_r - mean w|^2).
struct AveragingRecord {
  std::int64_t averages = 0;
  double mean_distance = 0;
  double max_distance = 0;
  int period = 0;  ///< the last one, in steps
};

/// Members of a population.
struct PopulationRecord {
  std::int64_t exchanges = 0;  ///< tournaments, or exchanges of models
  /// By member: tournaments of this run in which it took another's model.
  std::vector<std::int64_t> taken{};
  /// Of copies of models, on rank 0: steps since they were made, when they were used.
  double mean_age = 0;
  std::int64_t max_age = 0;  ///< 0: none was used
  int best = 0;              ///< the member whose model is the run's
};

/// Last record of a run that was completed, or interrupted after saving.
struct EndRecord {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double wall_s = 0;
  double samples_per_s = 0;
  /// Mean over the samples of the last `train_loss_steps` steps: those of one epoch, at most 100,
  /// of this run.
  double train_loss = 0;
  std::int64_t train_loss_steps = 0;
  std::int64_t skipped_steps =
      0;  ///< steps without update, because a gradient overflowed in float16
  std::optional<double> val_loss{};
  std::optional<double> test_accuracy{};
  std::string best_metric{};   ///< "loss" or "accuracy" of the validation split; empty: none
  std::int64_t best_step = 0;  ///< step of the best evaluation; 0: none
  double best_value = 0;
  bool stopped_early = false;  ///< because of train.patience
  bool converged = false;      ///< ended because steps changed nothing any more
  std::string weights_hash{};  ///< 16 hexadecimal digits
  int ranks = 1;
  int hosts = 1;
  /// Between hosts, index = rank; empty with server processes.
  std::vector<std::uint64_t> bytes_sent_per_rank{};
  std::vector<StalenessRecord> staleness{};      ///< by worker; empty without parameter servers
  std::vector<ServerRecord> servers{};           ///< with server processes
  std::vector<LostWorkerRecord> lost_workers{};  ///< likewise; by worker
  std::optional<AveragingRecord> averaging{};    ///< with parameter averaging
  std::optional<PopulationRecord> population{};  ///< of strategies whose ranks are members of one
  std::string checkpoint{};                      ///< path of the last one, empty when none
  std::string sample{};                          ///< generated text, empty for other models
  std::string no_sample{};                       ///< why there is none of a model that has one
  bool interrupted = false;
};

/// Why a run was not completed.
struct ErrorRecord {
  int exit_code = 1;
  std::string message{};
};

/// Receives the records of a run. Only rank 0 has one that prints. Called on the training thread;
/// must not block for long and must not throw.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_start(const StartRecord&) {}
  /// After on_start.
  virtual void on_sharding(const ShardingRecord&) {}
  virtual void on_step(const StepRecord&) {}
  /// Called between logged steps, a few times a second; the record covers the time since the last
  /// logged step.
  virtual void on_progress(const StepRecord&) {}
  virtual void on_eval(const EvalRecord&) {}
  virtual void on_save_failed(const SaveFailedRecord&) {}
  virtual void on_warning(const WarningRecord&) {}
  virtual void on_slow_ranks(const SlowRanksRecord&) {}
  virtual void on_end(const EndRecord&) {}
  /// Instead of on_end.
  virtual void on_error(const ErrorRecord&) {}
};

}  // namespace stormo::observe
