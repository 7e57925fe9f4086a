// A rank of an elastic job that trains, for elastic_points_test.cc and elastic_flips_test.cc.
// `elastic_points_worker POINT KIND`: local rank 1 of the first host, or 0 where only it comes
// there, is killed at this point of a step in the middle of the run. Where the point is one of a
// replacement, its first replacement is killed there. All ranks are waited for, so there is a
// replacement before the next step. `elastic_points_worker flip-WHAT KIND`: the first process of
// local rank 1 flips a bit of a weight or of an averaged gradient in the middle, or also in later
// steps. Rank 0 prints the hash of the weights, and warnings of wrong bits.
//
// KIND is `shards`: logical shards, of which each rank has a copy of the parameters. Or `shared`:
// ranks share one copy, and sums of gradients have no rounding, whoever adds them up. Or
// `pipelines`, of two stages. Or ranks train on by themselves: `averages`, `outer` (DiLoCo) and
// `gossip`; `each` averages behind each step what is linear in gradients of 64 bits. Then rank 0
// also prints the loss of the final weights.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <stormo/launch/environment.h>
#include <stormo/launch/process/fork_server.h>
#include <stormo/model/mlp.h>
#include <stormo/protocol/supervisor.h>
#include <stormo/stormo.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/elastic/elastic_session.h>

namespace {

using namespace stormo;
using std::string_view;

constexpr int kSteps = 200;
constexpr int kMiddle = 70;  ///< loads until the end, or steps until a flip
constexpr int kNobodyGoesOn = 75;
constexpr string_view kShards = "shards", kShared = "shared", kPipelines = "pipelines";
constexpr string_view kAverages = "averages", kOuter = "outer", kGossip = "gossip", kEach = "each";
bool is_local(string_view kind) {
  return kind == kAverages || kind == kOuter || kind == kGossip || kind == kEach;
}

/// Where this process is to end.
class Fate final : public Sink {
 public:
  Fate(const train::ElasticPlace& place, string_view point) : point_(point) {
    const bool of_replacement =
        std::ranges::find(kOfReplacement, point) != std::end(kOfReplacement);
    const int victim = point == "reports" ? 0 : 1;
    if (place.place.local_rank != victim || place.place.cross_rank != 0) return;
    if (point == "nowhere") return;
    if (place.incarnation == 1) {
      loads_ = kMiddle;
      if (of_replacement) point_ = "loaded";
    } else if (place.incarnation == 2 && of_replacement) {
      loads_ = 0;
    }
  }

  void at(string_view point) {
    if (is_at(point)) end();
  }
  /// The parameter whose part is half written at the point "written".
  void watch(const torch::Tensor& weights) { weights_ = weights; }
  void done(const plan::Action& action) {
    using plan::ActionKind;
    if (action.kind == ActionKind::kLoad) {
      ++loaded_;
      at("loaded");
      at("receives");
    }
    if (action.kind == ActionKind::kAllReduce) at("reduced");
    if (action.kind == ActionKind::kShareGradients) at("published");
    if (action.kind == ActionKind::kUpdate) at("updated");
    sums_ = action.kind == ActionKind::kUpdate ? 0 : kNoAverage;
    if (row_of(action.kind).averages()) at("averaged");
    if (action.kind == ActionKind::kOuterUpdate) at("outer");
    if (action.kind == ActionKind::kMix) at("mixes");
    if (action.kind == ActionKind::kShareParameters) at("shared");
    if (action.kind == ActionKind::kAgree) at("agreed");
    if (action.kind == ActionKind::kCommit) {
      at("committed");
      at("compared");
      if (is_at("written")) end_by_a_write();
    }
  }
  /// Between the sums of an average: when it has the weights, perhaps, and not all of the state.
  void record(const Event& event) override {
    if (event.name == "all_reduce" && sums_ >= 0 && ++sums_ == 2) at("averages");
  }

 private:
  static constexpr int kNoAverage = -1;
  bool is_at(string_view point) const {
    return loads_ >= 0 && loads_ <= loaded_ && point == point_;
  }
  static void end() { ::kill(::getpid(), SIGKILL); }
  /// At the first store into a page inside of this rank's part, which is the second of two or
  /// three.
  void end_by_a_write() {
    constexpr std::uintptr_t kPage = 4096;
    struct sigaction action {};
    action.sa_handler = [](int) { end(); };
    ::sigaction(SIGSEGV, &action, nullptr);
    const auto inside =
        reinterpret_cast<std::uintptr_t>(weights_.data_ptr()) + weights_.nbytes() * 3 / 5;
    ::mprotect(reinterpret_cast<void*>(inside / kPage * kPage), kPage, PROT_READ);
  }

  static constexpr string_view kOfReplacement[] = {"starts", "asks", "receives", "compared"};
  string_view point_;
  torch::Tensor weights_;
  int loads_ = -1;  // before it may end; -1: it never does
  std::atomic<int> loaded_ = 0;
  std::atomic<int> sums_ = kNoAverage;  // since the update
};

constexpr string_view kFlip = "flip-";

/// Which bits of this process are wrong, and when.
class Flips {
 public:
  Flips(const train::ElasticPlace& place, string_view point, std::shared_ptr<torch::nn::Module> net)
      : net_(std::move(net)) {
    const bool is_victim = place.place.local_rank == 1 && place.incarnation == 1;
    if (is_victim && point.starts_with(kFlip)) what_ = point.substr(kFlip.size());
  }
  void done(const plan::Action& action) {
    using plan::ActionKind;
    if (action.kind == ActionKind::kLoad) flipped_ = false;
    if (action.kind == ActionKind::kAgree) ++steps_;
    const bool is_due = what_ == "gradient-always" || (steps_ - kMiddle) % 10 == 0;
    if (flipped_ || steps_ < kMiddle || !is_due) return;
    std::vector<torch::Tensor> all = net_->parameters();
    std::erase_if(all, [](const torch::Tensor& p) { return !tensor::has_memory(p); });
    if (action.kind == ActionKind::kUpdate && what_.starts_with("weight")) {
      flip(all.back().data());
    } else if (action.kind == ActionKind::kAllReduce && what_.starts_with("gradient")) {
      for (const torch::Tensor& p : all) flip(p.grad());  // whatever part of them is compared
    }
    if (flipped_ && what_.find('-') == string_view::npos) what_ = "";  // once
  }

 private:
  void flip(const torch::Tensor& t) {
    static_cast<std::uint8_t*>(t.mutable_data_ptr())[2] ^= 1;
    flipped_ = true;
  }
  std::shared_ptr<torch::nn::Module> net_;
  string_view what_;
  int steps_ = 0;
  bool flipped_ = false;  // in this attempt at a step
};

/// Whole numbers, whose means over 2, 3, 4 or 8 samples are exact, and so are sums of these.
class Numbers final : public data::Dataset {
 public:
  explicit Numbers(Fate& fate) : fate_(fate) {}
  std::int64_t size() const override { return 96; }
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const override {
    fate_.at("reads");
    const auto rows = static_cast<std::int64_t>(indices.size());
    data::Batch batch{torch::empty({rows, kInputs}), torch::zeros({rows}, torch::kInt64)};
    auto* value = batch.input.mutable_data_ptr<float>();
    for (const std::int64_t index : indices) {
      for (std::int64_t i = 0; i < kInputs; ++i) {
        *value++ = static_cast<float>(24 * ((index * 37 + i * i * 11) % 23 - 11));
      }
    }
    return batch;
  }
  static constexpr std::int64_t kInputs = 64;

 private:
  Fate& fate_;
};

/// What all kinds train: `fate` sees each part of a step.
train::Task watched_task(
    Fate& fate, std::shared_ptr<torch::nn::Module> module,
    std::function<torch::Tensor(const torch::Tensor& x)> forward,
    std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)> loss) {
  train::Task task;
  task.module = std::move(module);
  task.forward = [forward = std::move(forward), &fate](const torch::Tensor& x) {
    fate.at("forward");
    return forward(x);
  };
  task.loss = [loss = std::move(loss), &fate](const torch::Tensor& output,
                                              const torch::Tensor& target) {
    fate.at("loss");
    if (output.requires_grad()) {
      output.register_hook([&fate](const torch::Tensor&) { fate.at("backward"); });
    }
    return loss(output, target);
  };
  return task;
}

/// Its gradient is the mean of the inputs, whatever the weights are.
train::Task linear_task(Fate& fate) {
  torch::manual_seed(1);
  torch::nn::Linear net(torch::nn::LinearOptions(Numbers::kInputs, 1000).bias(false));
  fate.watch(net->weight);
  const auto forward = [net](const torch::Tensor& x) mutable {
    return net->forward(x / std::max<std::int64_t>(x.size(0), 1));
  };
  return watched_task(
      fate, net.ptr(), forward,
      [](const torch::Tensor& output, const torch::Tensor&) { return output.sum(); });
}

/// Two clouds of points; equal numbers give equal samples in all processes.
class Clouds final : public data::Dataset {
 public:
  explicit Clouds(Fate& fate) : fate_(fate) {}
  std::int64_t size() const override { return 100; }
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const override {
    fate_.at("reads");
    const auto rows = static_cast<std::int64_t>(indices.size());
    data::Batch batch{torch::empty({rows, 6}), torch::empty({rows}, torch::kInt64)};
    auto* value = batch.input.mutable_data_ptr<float>();
    auto* target = batch.target.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      for (std::int64_t i = 0; i < 6; ++i) {
        *value++ =
            static_cast<float>((index * 37 + i * i * 11) % 23) / 23 + static_cast<float>(index % 2);
      }
      *target++ = index % 2;
    }
    return batch;
  }

 private:
  Fate& fate_;
};

class Reports final : public observe::RunObserver {
 public:
  explicit Reports(Fate& fate) : fate_(fate) {}
  void on_step(const observe::StepRecord&) override { fate_.at("reports"); }
  void on_warning(const observe::WarningRecord& r) override {
    if (r.kind == "replica_mismatch" || r.kind == "gradient_mismatch") {
      std::printf("%s in step %d: %s\n", r.kind.c_str(), static_cast<int>(r.step),
                  r.message.c_str());
    }
  }

 private:
  Fate& fate_;
};

train::Task clouds_task(Fate& fate, string_view kind) {
  torch::manual_seed(1);
  const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target);
  };
  if (kind == kPipelines) {
    const auto net = std::make_shared<model::Mlp>(std::vector<std::int64_t>{6, 33, 2});
    return watched_task(
        fate, net, [net](const torch::Tensor& x) { return net->forward(x); }, loss);
  }
  torch::nn::Sequential net(torch::nn::Linear(6, 33), torch::nn::Tanh(), torch::nn::Linear(33, 2));
  const auto type = kind == kEach ? torch::kFloat64 : torch::kFloat32;
  net->to(type);
  const auto forward = [net, type](const torch::Tensor& x) mutable {
    return net->forward(x.to(type));
  };
  return watched_task(fate, net.ptr(), forward, loss);
}

/// Of all samples.
double loss_of(const train::Task& task, const data::Dataset& samples) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(static_cast<std::size_t>(samples.size()));
  std::iota(all.begin(), all.end(), 0);
  const data::Batch batch = samples.get(all, 0);
  return task.loss(task.forward(batch.input), batch.target).item<double>();
}

train::TrainerOptions options(string_view point, string_view kind) {
  const bool shares = kind == kShared;
  train::TrainerOptions o;
  // one reduction in a step, and the same one in each kind of run
  o.gradients.overlap = !point.starts_with(kFlip) && kind != kPipelines;
  o.strategy.kind = train::Strategy::Kind::kDdp;
  o.commits = true;
  o.logical_shards = kind == kShards ? 5 : 0;
  if (kind == kPipelines) {
    o.strategy.pipeline = 2;
    o.micro_batches = 2;
  }
  if (is_local(kind)) {
    o.strategy.kind = kind == kGossip ? train::Strategy::Kind::kGossip
                                      : train::Strategy::Kind::kParameterAveraging;
    o.strategy.period = kind == kEach ? 1 : 4;
    if (kind == kOuter) o.strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
  }
  o.steps = kSteps;
  o.global_batch = shares ? 8 : 12;
  o.log_every = 1;
  o.optimizer = {.kind = train::OptimizerOptions::Kind::kAdamW, .lr = 1e-2};
  if (kind == kEach) o.optimizer = {.lr = 0.05, .momentum = 0.9};
  return o;
}

train::ElasticPlace find_place(string_view point) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  train::ElasticPlace place;
  place.place = launch::read_environment(launch::process_environment()).take_or_throw();
  place.register_address = variable("STORMO_REGISTER");
  place.job = variable("STORMO_JOB");
  place.incarnation = std::stoull(variable("STORMO_INCARNATION"));
  const bool may_leave = point.starts_with(kFlip);
  place.min_ranks = may_leave ? 1 : static_cast<std::size_t>(place.place.size);
  return place;
}

int run(string_view point, string_view kind) {
  const bool shares = kind == kShared;
  train::ElasticPlace place = find_place(point);
  Fate fate(place, point);
  fate.at("starts");
  auto first = train::first_world(place).take_or_throw();
  comm::EpochWorld& epochs = *first;
  const World world = init(std::move(first), 1);
  train::ElasticSession session(epochs, place,
                                {.say =
                                     [&](const std::string& line) {
                                       fate.at("asks");
                                       std::fprintf(stderr, "%s: %s\n", place.identity().c_str(),
                                                    line.c_str());
                                     },
                                 .is_asked_to_stop = [] { return false; },
                                 .is_asked_to_leave = [] { return false; }});
  Reports reports(fate);
  const train::Task task = shares ? linear_task(fate) : clouds_task(fate, kind);
  Flips flips(place, point, task.module);
  std::shared_ptr<data::Dataset> samples;
  if (shares) samples = std::make_shared<Numbers>(fate);
  if (!shares) samples = std::make_shared<Clouds>(fate);
  train::Trainer trainer(world, task, samples, {}, options(point, kind));
  trainer.set_elastic(&session);
  trainer.verify_state(1);
  trainer.set_observer(&reports);
  trainer.on_lead([&] { return &reports; });
  if (is_local(kind)) trainer.set_sink(&fate);
  trainer.on_action([&](const plan::Action& action) {
    fate.done(action);
    flips.done(action);
  });
  const auto end = trainer.run();
  if (session.has_left_job()) return protocol::kHasLeft;
  if (end.status().code() == Code::kMismatch) {
    std::fprintf(stderr, "worker: %s\n", end.status().message().c_str());
    return kNobodyGoesOn;
  }
  throw_if_error(end.status());
  if (world.rank() == 0) std::printf("weights %s\n", end->weights_hash.c_str());
  if (world.rank() == 0 && is_local(kind)) std::printf("loss %.12f\n", loss_of(task, *samples));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  launch::serve_forks(argc, argv);
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: %s\n", e.what());
    return 1;
  }
}
