#include <stormo/train/simulate/simulated_training.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/data/sampler.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/store/served_parameters.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::train {
namespace {

using protocol::PushDecision;
using server::SharedShard;

class Simulation {
 public:
  using OnStep = std::function<void(const SimulatedTraining::Step&)>;

  Simulation(const Task& task, const data::Dataset& data, const TrainerOptions& options,
             protocol::VirtualCluster cluster, const OnStep& on_step)
      : task_(task),
        data_(data),
        options_(options),
        cluster_(std::move(cluster)),
        on_step_(on_step) {}

  Result<SimulatedTraining> run() {
    STORMO_ASSIGN_OR_RETURN(
        ServedParameters served,
        ServedParameters::create(trainable_parameters(*task_.module), options_, cluster_.workers));
    served_ = std::make_unique<ServedParameters>(std::move(served));
    cluster_.servers = static_cast<int>(served_->shards());
    STORMO_RETURN_IF_ERROR(create_shards());
    STORMO_ASSIGN_OR_RETURN(const auto policy,
                            make_policy(options_.servers.policy, cluster_.workers));
    task_.module->train();
    const protocol::VirtualEvents events{
        .read = [this](int w, int s) { return read(w, s); },
        .computed = [this](int w, std::int64_t step,
                           Duration now) { return compute(w, step, now); },
        .pushed = [this](int s, const protocol::Push& push,
                         const PushDecision& decision) { return push_to(s, push, decision); },
        .left = [this](int w, int s) { return shard(w, s).leave(w, rate_of(w)).status(); }};
    Result<protocol::VirtualOutcome> outcome = run_virtual(cluster_, *policy, events);
    if (result_.diverged) {
      result_.outcome.time = *result_.diverged;
      for (const auto& shard : of(0).shards) result_.outcome.servers.push_back(shard->state());
    } else {
      STORMO_ASSIGN_OR_RETURN(result_.outcome, std::move(outcome));
    }
    std::vector<SharedShard::View> last;
    for (int s = 0; s < cluster_.servers; ++s) last.push_back(shard(0, s).look(0));
    served_->show(last);
    served_->keep_values();
    return std::move(result_);
  }

 private:
  struct Worker {
    std::vector<std::unique_ptr<SharedShard>> shards;
    std::vector<SharedShard::View> views;  // by shard, since its last read
    std::vector<torch::Tensor> gradients;  // since its last push
    double gradient_scale = 1;             // of them: clipping
    std::unique_ptr<data::Sampler> sampler;
    std::int64_t samples = 0;
    std::int64_t step = 0;
  };
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  SharedShard& shard(int w, int s) { return *of(w).shards[static_cast<std::size_t>(s)]; }
  double rate_of(int w) {
    const double peak =
        scaled_learning_rate(options_.learning_rate, options_.optimizer.lr, options_.global_batch);
    return learning_rate(options_.learning_rate, peak, of(w).step, cluster_.steps);
  }

  Status create_shards() {
    workers_.resize(static_cast<std::size_t>(cluster_.workers));
    for (int w = 0; w < cluster_.workers; ++w) {
      for (std::size_t s = 0; s < served_->shards(); ++s) {
        of(w).shards.push_back(served_->make_shard(s, {.policy = {}}));
      }
      of(w).views.resize(served_->shards());
      of(w).sampler =
          std::make_unique<data::Sampler>(data_.size(), options_.global_batch, options_.seed,
                                          /*shuffle=*/true, w, cluster_.workers);
      of(w).sampler->balance(data_.lengths());
    }
    for (std::size_t s = 0; s < served_->shards(); ++s) {
      const std::size_t bytes = of(0).shards[s]->bytes();
      STORMO_ASSIGN_OR_RETURN(transport::MemoryFile memory,
                              transport::MemoryFile::anonymous(bytes));
      of(0).shards[s]->create(memory.data());
      served_->copy_values_to(*of(0).shards[s], s);
      for (Worker& w : workers_) w.shards[s]->attach(memory.data());
      memory_.push_back(std::move(memory));
    }
    return {};
  }

  Status read(int w, int s) {
    STORMO_ASSIGN_OR_RETURN(of(w).views[static_cast<std::size_t>(s)], shard(w, s).read(w));
    return {};
  }

  /// The share of worker `rank` in step `step`.
  data::Sampler::Slice slice_of(int rank, std::int64_t step) {
    while (std::ssize(cursors_) <= step) {
      cursors_.push_back(of(0).sampler->slice(cursors_.back()).next);
    }
    return of(rank).sampler->slice(cursors_[static_cast<std::size_t>(step)]);
  }

  Status compute(int w, std::int64_t step, Duration now) {
    Worker& me = of(w);
    // steps of a pool are dealt to ranks in turns, as a synchronous run would
    const int rank = cluster_.pooled ? static_cast<int>(step % cluster_.workers) : w;
    me.step = cluster_.pooled ? step / cluster_.workers : step;
    const data::Sampler::Slice slice = slice_of(rank, me.step);
    Rng rng(options_.seed, "step", static_cast<std::uint64_t>(me.step));
    torch::manual_seed(rng.next_u64() + static_cast<std::uint64_t>(rank));
    const data::Batch batch = data_.get(slice.indices, slice.epoch);
    served_->show(me.views);
    const double loss = batch.size() > 0 ? backward(batch) : 0;
    me.gradients = served_->gradients();
    me.samples = batch.size();
    for (const NamedParameter& p : served_->parameters()) p.tensor.mutable_grad() = torch::Tensor();
    if (batch.size() == 0) return {};  // the workers before had all that was left of an epoch
    result_.steps.push_back({.at = now, .worker = w, .samples = batch.size(), .loss = loss});
    if (on_step_) on_step_(result_.steps.back());
    if (!std::isfinite(loss)) {
      result_.diverged = now;
      return Status(Code::kCancelled, "the loss is not finite");
    }
    return clip(me);
  }

  /// Returns the loss.
  double backward(const data::Batch& batch) {
    torch::Tensor output;
    {
      std::optional<Autocast> autocast;
      if (task_.autocast) autocast.emplace(at::kCPU, *task_.autocast);
      output = task_.forward(batch.input);
    }
    if (task_.autocast) output = output.to(torch::kFloat32);
    const torch::Tensor loss = task_.loss(output, batch.target);
    loss.backward();
    return loss.item<double>();
  }

  /// Every worker clips its own gradient.
  Status clip(Worker& me) {
    if (options_.clip_norm <= 0) return {};
    double square = 0;
    for (const torch::Tensor& g : me.gradients) {
      if (g.defined()) square += std::pow(torch::linalg_vector_norm(g).item<double>(), 2);
    }
    STORMO_ASSIGN_OR_RETURN(me.gradient_scale,
                            clip_coefficient(std::sqrt(square), options_.clip_norm));
    return {};
  }

  Status push_to(int s, const protocol::Push& push, const PushDecision& expected) {
    Worker& me = of(push.worker);
    const auto pieces = served_->gradient_pieces(static_cast<std::size_t>(s), me.gradients);
    STORMO_ASSIGN_OR_RETURN(const SharedShard::Pushed pushed,
                            shard(push.worker, s)
                                .push(push.worker, {.pieces = pieces,
                                                    .lr = rate_of(push.worker),
                                                    .gradient_scale = me.gradient_scale,
                                                    .weight = static_cast<double>(me.samples),
                                                    .sequence = push.sequence}));
    if (pushed.decision == expected) return {};
    return Status(Code::kCorrupt, "shard and simulation decide differently");
  }

  const Task& task_;
  const data::Dataset& data_;
  const TrainerOptions& options_;
  protocol::VirtualCluster cluster_;
  const OnStep& on_step_;
  std::unique_ptr<ServedParameters> served_;
  std::vector<Worker> workers_;
  std::vector<std::int64_t> cursors_ = {0};    // where steps begin in the data
  std::vector<transport::MemoryFile> memory_;  // by shard
  SimulatedTraining result_;
};

}  // namespace

Result<SimulatedTraining> simulate_training(
    const Task& task, const data::Dataset& data, const TrainerOptions& options,
    protocol::VirtualCluster cluster,
    const std::function<void(const SimulatedTraining::Step&)>& on_step) {
  return Simulation(task, data, options, std::move(cluster), on_step).run();
}

}  // namespace stormo::train
