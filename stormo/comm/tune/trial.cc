#include <stormo/comm/tune/trial.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <stormo/comm/operation/operation.h>

namespace stormo::comm {

using plan::GoalKind;

Result<std::unique_ptr<Trial>> Trial::create(Group& world, std::uint64_t max_bytes,
                                             Duration pause) {
  std::unique_ptr<Trial> trial(new Trial(world, pause));
  trial->in_ = static_cast<std::byte*>(world.arena().allocate(max_bytes));
  trial->out_ = static_cast<std::byte*>(world.arena().allocate(max_bytes));
  if (trial->in_ == nullptr || trial->out_ == nullptr) {
    return Status(Code::kExhausted, "tune: no room for its buffers in the arena");
  }
  std::fill_n(trial->in_, max_bytes, std::byte{0});
  return trial;
}

Trial::~Trial() {
  world_.arena().deallocate(in_);
  world_.arena().deallocate(out_);
}

std::vector<Choice> Trial::candidates(GoalKind goal, std::uint64_t bytes,
                                      const Choice& first) const {
  std::vector<Choice> out;
  std::vector<plan::Schedule> schedules;
  const auto add = [&](const Choice& choice) {
    if (!check_choice(choice, goal, world_.ranks_per_host()).ok()) return;
    auto schedule = build(choice, {goal, 0}, world_.ranks_per_host());
    const auto same = [&](const plan::Schedule& s) { return s.rounds == schedule->rounds; };
    if (!schedule.ok() || std::ranges::any_of(schedules, same)) return;
    schedules.push_back(std::move(*schedule));
    out.push_back(choice);
  };
  add(first);
  for (const schedule::Builder& b : schedule::builders()) {
    for (const int pieces : {1, 4, 16}) {
      if (pieces > 1 && (!b.takes.pieces || bytes < std::uint64_t{4096} * pieces)) continue;
      add({&b, pieces});
    }
  }
  return out;
}

Trial::Buffers Trial::buffers(GoalKind goal, std::uint64_t bytes) const {
  const auto whole =
      static_cast<std::int64_t>(bytes / sizeof(float)) / world_.size() * world_.size();
  const std::int64_t part = whole / world_.size();
  const bool gathers = goal == GoalKind::kAllGather || goal == GoalKind::kGather;
  const bool scatters = goal == GoalKind::kReduceScatter || goal == GoalKind::kScatter;
  const Buffer in{in_, gathers ? part : whole, DType::kFloat32};
  const Buffer out{out_, scatters ? part : whole, DType::kFloat32};
  return {in, in_place(kind_of(goal)) ? in : out};
}

bool Trial::posted_whole(GoalKind goal, std::uint64_t bytes) const {
  const Buffers b = buffers(goal, bytes);
  return world_.posts_whole({.kind = kind_of(goal), .in = {&b.in, 1}, .out = {&b.out, 1}});
}

Result<double> Trial::once(GoalKind goal, std::uint64_t bytes,
                           const std::optional<Choice>& choice) {
  const Buffers b = buffers(goal, bytes);
  Request r{.kind = kind_of(goal), .in = {&b.in, 1}, .out = {&b.out, 1}};
  if (choice) r.algorithm = choice->builder->name;
  if (choice) r.pieces = choice->pieces;
  // otherwise a rank finds what it contributes in its cache
  std::fill_n(in_, b.in.bytes(), std::byte{0});
  if (pause_ > Duration{0}) std::this_thread::sleep_for(pause_);
  STORMO_RETURN_IF_ERROR(world_.barrier());
  const auto start = std::chrono::steady_clock::now();
  STORMO_RETURN_IF_ERROR(world_.run(r, Deadline::never()));
  double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  STORMO_RETURN_IF_ERROR(world_.all_reduce(std::span(&took, 1), ReduceOp::kMax));
  return took;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace stormo::comm
