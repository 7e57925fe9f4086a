#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/comm/work.h>
#include <stormo/train/elastic/elastic_session.h>
#include <stormo/train/elastic/training_state.h>
#include <stormo/train/run/lock_step_run.h>
#include <stormo/train/store/averaged_store.h>
#include <stormo/train/store/host_copy_store.h>

namespace stormo::train {

/// One epoch of an elastic run (docs/adr/0036-elastic-training.md): steps in lock step with the
/// members of its record, as the ElasticSession orders them. When the epoch ends otherwise than by
/// the end of the job, session.has_left() is true, and the session keeps what the next epoch goes
/// on with.
///
/// Where ranks train on by themselves between averages each step is committed, too, before its
/// update (docs/adr/0040-elastic-replicas-that-differ.md). An average behind it is taken by all
/// that are left, or by none: then they average anew where the next epoch begins.
class ElasticRun final : public LockStepRun {
 public:
  explicit ElasticRun(RunSetup& setup) : LockStepRun(setup), session_(*setup.elastic) {}
  ~ElasticRun() override;

 private:
  Status make_parameters() override;
  Status prepare() override;
  Status begin_progress() override;
  Status train() override;
  Result<data::Batch> load() override;
  Status commit() override;
  Status agree(const StepOutcome& mine) override;
  std::unique_ptr<StateWatch> make_watch() override;

  Status open_session();
  void log_epoch() const;
  HostCopyStore* shared();
  Status share_state(bool has_state);
  bool gets_slices(const protocol::ElasticEntry& member);
  std::uint64_t gradient_hash();
  Status meet_in_mesh();
  int parts() const;  ///< of the model: stages of a pipeline
  int part() const;   ///< of this rank
  Rank first_donor(int part) const;
  Status take_progress();
  Status take_rest();
  bool is_local() const { return session_.kept.replica.has_value(); }
  LocalReplica& replica() { return *session_.kept.replica; }
  AveragedStore* averaged();
  FusedOptimizer& own_optimizer();
  Status go_on_locally();
  Status copy_replicas();
  Status average_anew();
  void note_average(std::int64_t step);
  void note_update();
  void tell_update();
  void keep_replica();
  Status take_buffers(Rank from);
  Status follow(const ElasticSession::Order& order);
  Status do_step(const protocol::RunStep& order);
  Status try_step(const protocol::RunStep& order);
  Status after_failure(const Status& failure);
  Status apply_held(const protocol::ApplyUpdate& order);
  Status close_epoch();
  Status end();
  Status divide_samples(const protocol::RunStep& order);
  Status divide_shards(const std::vector<bool>& computes);
  Status divide_pipelines(const std::vector<bool>& computes);
  Result<data::Batch> load_other(int replica);
  void exchange_slices(const protocol::RunStep& order);
  Status finish_slices();
  bool is_state_needed() const;
  Status complete_state(std::uint64_t next_step);
  Result<protocol::StepAgreed> compare(const protocol::AgreeOn& order);
  Status note_wrong_gradients(const protocol::AgreeOn& order);
  std::string name_of(Rank rank) const;
  TrainingState& state();

  ElasticSession& session_;
  protocol::RunStep order_;              // of the present step
  std::optional<TrainingState> blocks_;  // made when it is needed
  std::vector<std::vector<std::byte>> slice_bytes_;
  std::vector<comm::Work> slices_;  // under way in this step, from or to slice_bytes_
  std::uint64_t from_host_ = 0, from_others_ = 0;  // bytes of slices that this rank has received
  std::optional<bool> healing_;                    // how samples are divided
  bool computes_ = true;                           // this rank has some
  std::map<int, std::unique_ptr<data::Prefetcher>> others_;  // by replica whose work it does, too
  std::int64_t own_samples_ = 0;                             // of this rank, in this step
  bool averages_anew_ = false;  // behind the last step, of which nobody has taken the average
  bool is_updating_ = false;    // the commit has passed, its update is not told yet
  bool ends_epoch_ = false;     // with this step, as all have agreed
  bool is_over_soon_ = false;   // likewise: the job is
  bool is_ordered_ = false;     // another order is there: the step is given up
  bool gives_up_ = false;       // a step was given up: the Runner has to be made again
  bool is_over_ = false;
};

/// What members of a job have in common that has this setup, a state that is cut like this one, and
/// these steps.
ElasticSession::Terms elastic_terms(const RunSetup& setup, const TrainingState& state,
                                    std::int64_t step, std::int64_t last_step);

}  // namespace stormo::train
