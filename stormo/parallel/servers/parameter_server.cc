// Data parallelism with parameter servers.
//
// Idea: servers keep the parameters and apply the gradients that workers send. A worker needs no
// optimizer state, and a slow one holds up nobody where the policy of the servers allows for old
// parameters. Cost per step and worker: the bytes of the parameters once in each direction. A
// worker of several ranks adds a broadcast of the parameters and an all-reduce of the gradients
// over them, and loads the servers as one. A worker that is cut into stages or slices has for each
// of them servers of its own. Where servers average, workers send parameters now and then, and no
// gradients: the picture of MapReduce. Papers: J. Dean et al., "Large scale
// distributed deep networks", NIPS 2012; M. Li et al., "Scaling distributed machine learning with
// the parameter server", OSDI 2014; Q. Ho et al., "More effective distributed ML via a stale
// synchronous parallel parameter server", NIPS 2013; R. McDonald et al., "Distributed training
// strategies for the structured perceptron", NAACL 2010 (averages).
#include <stormo/parallel/servers/parameter_server.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/parallel/average_gradients.h>
#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;

/// Of workers that are cut.
Status check_parts(const plan::StepPlan& in, const ExchangePeriods& every, int ranks) {
  if (!data_axes(in.mesh).empty()) {
    return Status(Code::kBadPlan,
                  "parameter_server: workers are cut into stages and slices only; apply it once, "
                  "behind pipeline and tensor_parallel");
  }
  if (longest_delay(in) > 0) {
    return Status(Code::kBadPlan,
                  "parameter_server: steps overlap, so no step ends with all of its pushes; use a "
                  "schedule whose steps do not, such as '1f1b'");
  }
  if (ranks == 1 && every.every_step()) return {};
  return invalid_argument(
      "parameter_server: the parts of a worker are its ranks, and pull and push in every step; "
      "leave out worker_ranks, fetch_every and push_every");
}

Status check(const plan::StepPlan& in, int workers, const ExchangePeriods& every, int ranks) {
  if (every.fetch < 1 || every.push < 1) {
    return invalid_argument("parameter_server: a pull in every " + std::to_string(every.fetch) +
                            " steps and a push in every " + std::to_string(every.push) +
                            "; give at least 1");
  }
  if (workers < 1) {
    return invalid_argument("parameter_server: " + std::to_string(workers) +
                            " workers; give at least 1");
  }
  if (ranks < 1) {
    return invalid_argument("parameter_server: " + std::to_string(ranks) +
                            " ranks of a worker; give at least 1");
  }
  if (every.averages && ranks > 1) {
    return invalid_argument(
        "parameter_server: servers average workers of one rank, and these have " +
        std::to_string(ranks) + "; leave out worker_ranks");
  }
  if (model_axes(in.mesh).empty()) return check_no_axes(in, "parameter_server");
  return check_parts(in, every, ranks);
}

Result<plan::StepPlan> serve(const plan::StepPlan& in, int workers, const ExchangePeriods& every,
                             int ranks) {
  STORMO_RETURN_IF_ERROR(check(in, workers, every, ranks));
  plan::StepPlan out = in;
  out.strategy += "+parameter_server";
  std::vector<std::string> all = {kReplicaAxis};
  std::vector<plan::Axis> axes = {{kReplicaAxis, workers}};
  if (ranks > 1) {
    axes.push_back({plan::kWorkerAxis, ranks});
    all.emplace_back(plan::kWorkerAxis);
  }
  // outermost: ranks of one worker stay neighbours
  out.mesh.axes.insert(out.mesh.axes.begin(), axes.begin(), axes.end());
  for (std::vector<Placement>* placed : {&out.parameters, &out.optimizer_state}) {
    placed->insert(placed->begin(), axes.size(), Placement::kRemote);
  }
  // each rank has its own
  out.frozen.insert(out.frozen.begin(), axes.size(), Placement::kReplicate);
  std::erase_if(out.actions, [](const Action& a) { return row_of(a.kind).all_batches; });
  std::vector<Action> pushes;
  for (Action& a : out.actions) {
    if (!makes(a, plan::Value::kUpdated)) continue;
    pushes.push_back({.kind = every.averages ? ActionKind::kAverage : ActionKind::kPush,
                      .range = a.range,
                      .axes = {kReplicaAxis},
                      .every = every.push});
    if (every.every_step()) a = pushes.back();
  }
  // a copy is updated before it, or its gradients, are given away
  if (!every.every_step()) out.actions.insert(out.actions.end(), pushes.begin(), pushes.end());
  if (ranks > 1) average_in_worker(out);
  if (ranks > 1 || !model_axes(in.mesh).empty()) {
    out.actions.push_back({.kind = ActionKind::kAgree});
  }
  const auto forward = std::ranges::find_if(
      out.actions, [](const Action& a) { return row_of(a.kind).runs_forward(); });
  out.actions.insert(forward, {.kind = ActionKind::kPull,
                               .range = all_parameters(in.model),
                               .axes = all,
                               .every = every.fetch});
  return out;
}

bool pushes(const Action& a) { return places(a, plan::Value::kGradients, Placement::kRemote); }

/// An exchange of all parameters as asynchronous ones of the segments, those first that are needed
/// or complete first.
std::vector<Action> exchanges_of_segments(const plan::ModelShape& model, const Action& exchange) {
  std::vector<Action> out;
  for (int s = 0; const plan::SegmentShape& segment : model.segments) {
    const plan::Range own = parameters_of(model, {s, s});
    ++s;
    if (std::ranges::none_of(segment.parameters, &plan::ParameterShape::trainable)) continue;
    out.push_back(exchange);
    out.back().range = own;
    out.back().asynchronous = true;
  }
  if (pushes(exchange)) std::ranges::reverse(out);
  return out;
}

plan::StepPlan overlap(const plan::StepPlan& in) {
  plan::StepPlan out = in;
  out.strategy += "+overlap_exchange";
  out.actions.clear();
  for (const Action& a : in.actions) {
    const bool pulls = row_of(a.kind).takes_from(Placement::kRemote);
    const std::vector<Action> parts =
        pulls || pushes(a) ? exchanges_of_segments(in.model, a) : std::vector{a};
    out.actions.insert(out.actions.end(), parts.begin(), parts.end());
  }
  return out;
}

}  // namespace

Pass overlap_exchange() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> { return overlap(in); };
}

Pass parameter_server(int workers, ExchangePeriods every, int ranks) {
  return [=](const plan::StepPlan& in) { return serve(in, workers, every, ranks); };
}

}  // namespace stormo::parallel
