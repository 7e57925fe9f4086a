// Steps without lost ranks, executed: ranks that are threads compute a chain of small layers in
// float64, each what project() says, and send each other what it says. They train as one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/base/index.h>
#include <stormo/comm/communicator.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/pipeline/reroute.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/plan/project.h>

#include "pipeline_cases.h"

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::AssignedAction;
using plan::AssignedPlan;
using Vector = std::vector<double>;

constexpr std::size_t kWidth = 10;  // test::layers() has weights of 10 x 10
constexpr double kLossScale = 8, kClipNorm = 0.05, kRate = 0.1;
constexpr int kSteps = 2;
constexpr Duration kLong = std::chrono::seconds(60);

/// Values that depend on what they are for.
Vector numbers(int seed, std::size_t count) {
  Vector out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(std::sin(1.7 * seed + 0.37 * static_cast<double>(i) + 0.2) / 2);
  }
  return out;
}
Vector sample(int step, int replica, int micro_batch, int what) {
  return numbers(1000 * step + 100 * replica + 10 * micro_batch + what, kWidth);
}

/// y = tanh((W + W0) x + b), where W0 is the weight of the first layer if the layer borrows it.
struct Layer {
  const Vector* weight;
  const Vector* borrowed;  // or null
  const Vector* bias;

  double weight_at(std::size_t i) const {
    return (*weight)[i] + (borrowed != nullptr ? (*borrowed)[i] : 0);
  }
  Vector forward(const Vector& x) const {
    Vector y = *bias;
    for (std::size_t r = 0; r < kWidth; ++r) {
      for (std::size_t c = 0; c < kWidth; ++c) y[r] += weight_at(r * kWidth + c) * x[c];
      y[r] = std::tanh(y[r]);
    }
    return y;
  }
  /// The gradient of W x + b.
  Vector inner(const Vector& x, const Vector& dy) const {
    Vector out = forward(x);
    for (std::size_t i = 0; i < kWidth; ++i) out[i] = dy[i] * (1 - out[i] * out[i]);
    return out;
  }
  Vector backward_input(const Vector& dz) const {
    Vector dx(kWidth);
    for (std::size_t r = 0; r < kWidth; ++r) {
      for (std::size_t c = 0; c < kWidth; ++c) dx[c] += weight_at(r * kWidth + c) * dz[r];
    }
    return dx;
  }
};

/// Parameters of a model, or their gradients.
class Parameters {
 public:
  explicit Parameters(const plan::ModelShape& model) : model_(model) {
    for (const plan::ParameterShape* p : flatten(model)) {
      all.push_back(numbers(static_cast<int>(all.size()), static_cast<std::size_t>(p->elements)));
    }
  }
  Layer layer(int segment) const {
    const bool borrows = !model_.segments[at(segment)].borrowed.empty();
    return {&all[at(2 * segment)], borrows ? &all[0] : nullptr, &all[at(2 * segment + 1)]};
  }
  /// Of a layer, to these gradients.
  void add(int segment, const Vector& x, const Vector& dz) {
    for (std::size_t r = 0; r < kWidth; ++r) {
      for (std::size_t c = 0; c < kWidth; ++c) {
        all[at(2 * segment)][r * kWidth + c] += dz[r] * x[c];
        if (layer(segment).borrowed != nullptr) all[0][r * kWidth + c] += dz[r] * x[c];
      }
      all[at(2 * segment + 1)][r] += dz[r];
    }
  }
  void zero() {
    for (Vector& v : all) std::ranges::fill(v, 0.0);
  }

  std::vector<Vector> all;

 private:
  const plan::ModelShape& model_;
};

double squares(const Vector& v) {
  double out = 0;
  for (const double x : v) out += x * x;
  return out;
}

double clip_factor(double sum_of_squares) {
  return std::min(1.0, kClipNorm / std::sqrt(sum_of_squares));
}

void descend(Vector& parameter, const Vector& gradient, double factor) {
  for (std::size_t i = 0; i < parameter.size(); ++i) parameter[i] -= kRate * factor * gradient[i];
}

struct Trained {
  std::vector<Vector> parameters;
  std::vector<double> losses;
};

/// All micro-batches of all replicas, one after the other.
Trained on_one_process(const plan::StepPlan& plan) {
  const int replicas = num_replicas(plan), layers = static_cast<int>(plan.model.segments.size());
  Parameters parameters(plan.model), gradients(plan.model);
  Trained out;
  for (int step = 0; step < kSteps; ++step) {
    gradients.zero();
    out.losses.push_back(0);
    for (int d = 0; d < replicas; ++d) {
      for (int m = 0; m < plan.micro_batches; ++m) {
        std::vector<Vector> x = {sample(step, d, m, 0)};
        for (int s = 0; s < layers; ++s) x.push_back(parameters.layer(s).forward(x.back()));
        Vector dy = x.back();
        const Vector target = sample(step, d, m, 1);
        for (std::size_t i = 0; i < kWidth; ++i) dy[i] -= target[i];
        out.losses.back() += squares(dy) / 2;
        for (double& g : dy) g /= replicas * plan.micro_batches;
        for (int s = layers - 1; s >= 0; --s) {
          const Vector dz = parameters.layer(s).inner(x[at(s)], dy);
          gradients.add(s, x[at(s)], dz);
          dy = parameters.layer(s).backward_input(dz);
        }
      }
    }
    double sum = 0;
    for (const Vector& g : gradients.all) sum += squares(g);
    for (std::size_t p = 0; p < gradients.all.size(); ++p) {
      descend(parameters.all[p], gradients.all[p], clip_factor(sum));
    }
  }
  out.parameters = parameters.all;
  return out;
}

/// One rank: executes its part of an assigned plan, and nothing else.
class AssignedRank {
 public:
  AssignedRank(const AssignedPlan& assigned, const std::vector<Rank>& left, Rank rank,
               comm::Communicator& world)
      : plan_(assigned.plan),
        actions_(project(assigned, rank)),
        left_(left),
        rank_(rank),
        stage_(stage_of(plan_.mesh, rank)),
        world_(world),
        stages_(plan_.model),
        parameters_(plan_.model),
        gradients_(plan_.model) {}

  Trained train() {
    Trained out;
    for (step_ = 0; step_ < kSteps; ++step_) {
      gradients_.zero();
      inputs_.clear();
      loaded_.clear();
      loss_ = 0;
      for (const AssignedAction& a : actions_) act(a);
      for (comm::Work& sent : sends_) EXPECT_TRUE(sent.wait().ok());
      sends_.clear();
      sent_.clear();
      out.losses.push_back(loss_);
    }
    out.parameters = parameters_.all;
    return out;
  }
  /// Whether its stage has a parameter.
  bool has(std::size_t p) const {
    return std::ranges::count(stages_.of_parameter(static_cast<int>(p)), stage_) > 0;
  }
  void leave() {
    for (auto& [ranks, group] : groups_) EXPECT_TRUE(group->finalize(Deadline::after(kLong)).ok());
  }

 private:
  using Place = std::tuple<int, int, int>;  // replica, micro-batch, segment

  void act(const AssignedAction& assigned) {
    const Action& a = plan_.actions[assigned.action];
    now_ = &assigned;
    switch (a.kind) {
      case ActionKind::kLoad: loaded_.insert(assigned.replica); break;
      case ActionKind::kForward: forward(a); break;
      case ActionKind::kRecompute: compute_again(a); break;
      case ActionKind::kLoss: loss(a); break;
      case ActionKind::kMoveActivation:
      case ActionKind::kMoveGradient: move(a); break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight: backward(a); break;
      default: act_together(a);
    }
  }

  Place place(const Action& a, int segment) const {
    return {now_->replica, a.micro_batch, segment};
  }
  Layer layer(int segment) const { return parameters_.layer(segment); }

  void forward(const Action& a) {
    Vector x;
    if (a.range.first == 0) {
      EXPECT_TRUE(loaded_.contains(now_->replica));
      x = sample(step_, now_->replica, a.micro_batch, 0);
    } else {
      x = outputs_.at(place(a, a.range.first - 1));
    }
    const bool again = std::ranges::any_of(plan_.actions, [&](const Action& b) {
      return b.kind == ActionKind::kRecompute && b.range == a.range &&
             b.micro_batch == a.micro_batch;
    });
    for (int s = a.range.first; s <= a.range.last; ++s) {
      if (s == a.range.first || !again) inputs_[place(a, s)] = x;
      x = layer(s).forward(x);
    }
    outputs_[place(a, a.range.last)] = x;
  }
  void compute_again(const Action& a) {
    for (int s = a.range.first; s < a.range.last; ++s) {
      inputs_[place(a, s + 1)] = layer(s).forward(inputs_.at(place(a, s)));
    }
  }
  void loss(const Action& a) {
    const int last = static_cast<int>(plan_.model.segments.size()) - 1;
    Vector dy = outputs_.at(place(a, last));
    EXPECT_TRUE(loaded_.contains(now_->replica));
    const Vector target = sample(step_, now_->replica, a.micro_batch, 1);
    for (std::size_t i = 0; i < kWidth; ++i) dy[i] -= target[i];
    loss_ += squares(dy) / 2;
    const double scale = plan_.scaled_loss ? kLossScale : 1;
    for (double& g : dy) g *= scale / (num_replicas(plan_) * plan_.micro_batches);
    output_gradients_[place(a, last)] = dy;
  }
  /// Takes what it needs away, so that nothing is used twice.
  void backward(const Action& a) {
    const plan::ActionRow& row = row_of(a.kind);
    for (int s = a.range.last; s >= a.range.first; --s) {
      if (row.passes_gradient()) {
        const auto dy = output_gradients_.extract(place(a, s));
        const Vector dz = layer(s).inner(inputs_.at(place(a, s)), dy.mapped());
        if (s > 0) output_gradients_[place(a, s - 1)] = layer(s).backward_input(dz);
        inner_gradients_[place(a, s)] = dz;
      }
      if (!row.adds_gradients) continue;
      const auto x = inputs_.extract(place(a, s));
      const auto dz = inner_gradients_.extract(place(a, s));
      gradients_.add(s, x.mapped(), dz.mapped());
    }
  }

  /// Between ranks of the world, which are those that are left.
  Rank in_world(Rank rank) const {
    return static_cast<Rank>(std::ranges::find(left_, rank) - left_.begin());
  }
  void move(const Action& a) {
    const bool activation = a.kind == ActionKind::kMoveActivation;
    auto& values = activation ? outputs_ : output_gradients_;
    const Place where = place(a, a.range.first);
    const auto tag =
        static_cast<std::uint32_t>(now_->action * at(num_replicas(plan_)) + at(now_->replica));
    if (now_->ranks.front() == rank_) {
      sent_.push_back(std::make_unique<Vector>(values.extract(where).mapped()));
      sends_.push_back(world_.send_async(*sent_.back(), in_world(now_->ranks.back()), tag));
      return;
    }
    Vector received(kWidth);
    EXPECT_TRUE(
        world_.recv(received, in_world(now_->ranks.front()), tag, Deadline::after(kLong)).ok());
    values[where] = std::move(received);
  }

  /// Over the ranks of the present action. `term`: whether this rank's value counts.
  void sum(std::span<double> values, bool term = true) {
    if (!term) std::ranges::fill(values, 0.0);
    if (now_->ranks.size() == 1) return;
    auto& group = groups_[now_->ranks];
    if (group == nullptr) {
      std::vector<Rank> members;
      std::string name;
      for (const Rank r : now_->ranks) {
        members.push_back(in_world(r));
        name += std::to_string(r) + " ";
      }
      group = world_.group_of(members, name, Deadline::after(kLong)).take_or_throw();
    }
    EXPECT_TRUE(group->all_reduce(values, comm::ReduceOp::kSum, Deadline::after(kLong)).ok());
  }
  /// Of its stage, among the ranks of the present action.
  bool is_first() const {
    return *std::ranges::find_if(
               now_->ranks, [&](Rank r) { return stage_of(plan_.mesh, r) == stage_; }) == rank_;
  }

  void act_together(const Action& a) {
    if (a.kind == ActionKind::kAllReduce || a.kind == ActionKind::kAllReduceTied) {
      for (int p = a.range.first; p <= a.range.last; ++p) {
        if (!has(at(p))) continue;
        sum(gradients_.all[at(p)], a.kind == ActionKind::kAllReduce || is_first());
      }
    } else if (a.kind == ActionKind::kNorm) {
      squares_ = 0;
      for (std::size_t p = 0; p < gradients_.all.size(); ++p) {
        const bool own = stages_.of_parameter(static_cast<int>(p)).front() == stage_;
        if (own) squares_ += squares(gradients_.all[p]);
      }
      sum(std::span(&squares_, 1), is_first());
    } else if (a.kind == ActionKind::kUnscale) {
      double overflows = std::isfinite(squares_) ? 0 : 1;
      sum(std::span(&overflows, 1));
      EXPECT_EQ(overflows, 0);
      factor_ = 1 / kLossScale;
    } else if (a.kind == ActionKind::kClip) {
      factor_ *= clip_factor(squares_ * factor_ * factor_);
    } else if (a.kind == ActionKind::kUpdate) {
      for (int p = a.range.first; p <= a.range.last; ++p) {
        if (has(at(p))) descend(parameters_.all[at(p)], gradients_.all[at(p)], factor_);
      }
    } else if (a.kind == ActionKind::kAgree) {
      sum(std::span(&loss_, 1));
    } else {
      ADD_FAILURE() << "nobody does " << to_text(a);
    }
  }

  const plan::StepPlan& plan_;
  std::vector<AssignedAction> actions_;
  const std::vector<Rank>& left_;
  Rank rank_;
  int stage_;
  comm::Communicator& world_;
  plan::Stages stages_;
  Parameters parameters_, gradients_;
  std::set<int> loaded_;  // replicas, in this step
  std::map<Place, Vector> inputs_, outputs_, output_gradients_, inner_gradients_;
  std::vector<std::unique_ptr<Vector>> sent_;
  std::vector<comm::Work> sends_;
  std::map<std::vector<Rank>, std::unique_ptr<comm::Communicator>> groups_;
  const AssignedAction* now_ = nullptr;
  int step_ = 0;
  double loss_ = 0, squares_ = 0, factor_ = 1;
};

void expect_trains_as_one_process(const plan::StepPlan& p, const std::vector<Rank>& lost,
                                  const std::vector<Rank>& idle = {}) {
  const AssignedPlan assigned = reroute(p, lost, 0, idle).take_or_throw();
  const Trained expected = on_one_process(p);
  std::vector<Rank> left;
  for (Rank r = 0; r < p.mesh.size(); ++r) {
    if (std::ranges::count(lost, r) == 0) left.push_back(r);
  }
  auto world = comm::make_inproc_group(static_cast<int>(left.size())).take_or_throw();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < left.size(); ++i) {
    threads.emplace_back([&, i] {
      AssignedRank rank(assigned, left, left[i], *world[i]);
      const Trained found = rank.train();
      for (std::size_t parameter = 0; parameter < found.parameters.size(); ++parameter) {
        if (!rank.has(parameter)) continue;
        for (std::size_t e = 0; e < found.parameters[parameter].size(); ++e) {
          EXPECT_NEAR(found.parameters[parameter][e], expected.parameters[parameter][e], 1e-12);
        }
      }
      for (std::size_t step = 0; step < found.losses.size(); ++step) {
        EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-12 * expected.losses[step]);
      }
      rank.leave();
      EXPECT_TRUE(world[i]->finalize(Deadline::after(kLong)).ok());
    });
  }
  for (std::thread& t : threads) t.join();
}

/// With a weight that the first and the last stage read, a norm of all gradients, a scaled loss and
/// recomputation.
plan::StepPlan plan_with_all(const PipelineSchedule& schedule, int stages, int chunks,
                             int replicas) {
  return compose(one_device(test::layers(stages * chunks * 2, /*tied=*/true)), micro_batches(6),
                 scale_loss(), clip_gradients(),
                 pipeline({.stages = stages, .chunks = chunks, .schedule = schedule}), recompute(),
                 mirrored(replicas))
      .take_or_throw();
}

TEST(AssignedRun, TrainsAsOneProcessWithoutOneRank) {
  for (const char* name : {"gpipe", "1f1b", "zero_bubble"}) {
    const PipelineSchedule schedule = pipeline_schedule(name).take_or_throw();
    const plan::StepPlan p = plan_with_all(schedule, 3, 1, 2);
    for (Rank lost = 0; lost < p.mesh.size(); ++lost) {
      SCOPED_TRACE(std::string(name) + " without rank " + std::to_string(lost));
      expect_trains_as_one_process(p, {lost});
    }
  }
}

TEST(AssignedRun, TrainsAsOneProcessWithChunksAndLossesInEachPipeline) {
  expect_trains_as_one_process(plan_with_all(interleaved(), 2, 2, 3), {0, 3});
  expect_trains_as_one_process(plan_with_all(zero_bubble_v(), 3, 2, 3), {0, 4, 8});
  expect_trains_as_one_process(plan_with_all(one_forward_one_backward(), 3, 1, 3), {0, 3, 7, 5});
}

TEST(AssignedRun, RanksThatOnlyAddUpHaveTheSameParameters) {
  const plan::StepPlan p = plan_with_all(one_forward_one_backward(), 3, 1, 3);
  expect_trains_as_one_process(p, {}, {0, 5});
  expect_trains_as_one_process(p, {1}, {0, 4});
}

TEST(AssignedRun, TrainsAsOneProcessWithNobodyLost) {
  expect_trains_as_one_process(plan_with_all(eager_1f1b(), 2, 1, 2), {});
}

}  // namespace
}  // namespace stormo::parallel
