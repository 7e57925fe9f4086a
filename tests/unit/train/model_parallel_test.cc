// Models that are cut over ranks, by layers and inside of them: ranks do what the plan says of
// their part, and train as one process does.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <stormo/plan/project.h>

#include "tests/long.h"
#include "tests/unit/train/cut_model.h"

namespace stormo::train {
namespace {

using parallel::StepOptions;
using test::Batch;
using test::PlanRank;
using test::PlanRun;
using test::Problem;

using Way = test::CutWay;
using enum OptimizerOptions::Kind;

/// Shards of what each rank has of a model.
Strategy fsdp(int stage, int tensor, int context = 1, bool hybrid = false) {
  return {.kind = Strategy::Kind::kFsdp,
          .stage = stage,
          .hybrid = hybrid,
          .tensor = tensor,
          .context = context};
}

/// Shards of what each rank has of a stage.
Strategy fsdp_in_stages(int stage, int pipeline, const std::string& schedule = "1f1b",
                        int chunks = 1) {
  return {.kind = Strategy::Kind::kFsdp,
          .stage = stage,
          .pipeline = pipeline,
          .schedule = schedule,
          .chunks = chunks};
}

/// Each of the ranks that compute layers together has a part of the positions between them.
Strategy by_positions(Strategy s) {
  s.sequence_parallel = true;
  return s;
}

/// Updates by norms of whole parameters, of which ranks have parts.
Way with_norms(OptimizerOptions::Kind kind, Way way) {
  way.optimizer = kind;
  return way;
}

/// What can be cut in this way: a gpt that reads one weight at both ends, and another model; in the
/// long form all.
std::vector<Problem> problems_for(const Way& way) {
  const auto parts = static_cast<std::size_t>(way.strategy.pipeline * way.strategy.chunks);
  const int heads = std::max(2, way.strategy.tensor * way.strategy.context);
  const int positions = std::max(8, 4 * way.strategy.context * way.strategy.tensor);
  std::vector<Problem> out;
  for (const Problem& problem :
       {test::gpt_problem(true, heads, positions), test::gpt_problem(false, heads, positions),
        test::mlp_problem(), test::cnn_problem(), test::text_problem(),
        test::with_frozen_segment(test::mlp_problem(), 0),
        test::with_frozen_segment(test::gpt_problem(false, heads, positions), 1)}) {
    if ((way.strategy.context > 1 || way.strategy.sequence_parallel) &&
        problem.model(3)->split_shape().segments.front().positions == 0) {
      continue;  // only a gpt computes parts of the positions
    }
    if (problem.name == "text classifier" && way.strategy.tensor > 2) continue;  // it has 2 heads
    const bool is_small = problem.model(3)->segments().size() < parts;
    if (is_small && problem.name != "gpt") continue;
    out.push_back(problem);
  }
  if (!is_long_form()) out = {out[0], out[1 + way.name.size() % (out.size() - 1)]};
  return out;
}

class ModelParallelTrace : public testing::TestWithParam<Way> {};

TEST_P(ModelParallelTrace, IsThePlanAndTrainsAsOneProcess) {
  const Way& way = GetParam();
  for (const Problem& problem : problems_for(way)) {
    // 13 rows; of 3 rows some micro-batches, and with replicas some ranks, have none
    std::vector<Batch> batches = problem.batches(3, 13);
    batches.push_back(batches[0].rows(0, 3));
    const PlanRun all = run_of(way, problem, batches);
    const std::vector<test::PlanResult> runs = test::train_by_plan(all);
    Way one = way;
    one.hosts = {1};
    one.strategy = {};
    const auto reference = test::train_by_plan(run_of(one, problem, batches));
    std::vector<double> losses(batches.size());
    for (std::size_t r = 0; r < runs.size(); ++r) {
      test::expect_trace(runs[r].trace, project(all.plan, static_cast<Rank>(r)), batches.size());
      test::expect_near(runs[r].values, reference[0].values, 1e-10, problem.name);
      for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += runs[r].losses[i];
    }
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], reference[0].losses[i], 1e-10) << problem.name << " step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, ModelParallelTrace,
    testing::Values(
        Way{"gpipe", {2}, {.pipeline = 2, .schedule = "gpipe"}, {.micro_batches = 4}},
        Way{"one_f_one_b", {2}, {.pipeline = 2}, {.micro_batches = 4}},
        Way{"eager", {1, 1}, {.pipeline = 2, .schedule = "eager_1f1b"}, {.micro_batches = 4}},
        Way{"three_stages", {3}, {.pipeline = 3}, {.micro_batches = 5}},
        Way{"clipped", {2}, {.pipeline = 2}, {.micro_batches = 2, .clip = true}},
        Way{"recomputed", {2}, {.pipeline = 2}, {.micro_batches = 4, .recompute = true}},
        Way{"two_hosts", {1, 1}, {.pipeline = 2}, {.micro_batches = 4, .clip = true}},
        Way{"interleaved",
            {2},
            {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
            {.micro_batches = 4, .clip = true}},
        Way{"interleaved_on_hosts",
            {1, 1},
            {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
            {.micro_batches = 6, .recompute = true}},
        Way{"zero_bubble", {2}, {.pipeline = 2, .schedule = "zero_bubble"}, {.micro_batches = 4}},
        Way{"zero_bubble_of_three",
            {1, 2},
            {.pipeline = 3, .schedule = "zero_bubble"},
            {.micro_batches = 5, .clip = true}},
        Way{"zero_bubble_recomputed",
            {2, 2},
            {.pipeline = 2, .schedule = "zero_bubble"},
            {.micro_batches = 3, .recompute = true}},
        Way{"zero_bubble_v",
            {2},
            {.pipeline = 2, .schedule = "zero_bubble_v", .chunks = 2},
            {.micro_batches = 4, .clip = true}},
        Way{"zero_bubble_v_tensor",
            {4, 4},
            {.pipeline = 2, .tensor = 2, .schedule = "zero_bubble_v", .chunks = 2},
            {.micro_batches = 3}},
        Way{"replicas", {4}, {.pipeline = 2}, {.micro_batches = 2, .clip = true}},
        Way{"replicas_on_hosts", {2, 2}, {.pipeline = 2}, {.micro_batches = 3}},
        Way{"tensor", {2}, {.tensor = 2}},
        Way{"tensor_on_hosts", {1, 1}, {.tensor = 2}, {.micro_batches = 3, .clip = true}},
        Way{"tensor_of_three", {3}, {.tensor = 3}, {.clip = true}},
        Way{"tensor_recomputed", {2}, {.tensor = 2}, {.micro_batches = 2, .recompute = true}},
        Way{"tensor_replicas", {2, 2}, {.tensor = 2}, {.clip = true}},
        Way{"tensor_of_four", {4}, {.tensor = 4}, {.micro_batches = 2}},
        Way{"tensor_in_stages", {4}, {.pipeline = 2, .tensor = 2}, {.micro_batches = 4}},
        Way{"tensor_in_chunks",
            {2, 2},
            {.pipeline = 2, .tensor = 2, .schedule = "interleaved", .chunks = 2},
            {.micro_batches = 4, .clip = true}},
        Way{"sequence", {2}, by_positions({.tensor = 2})},
        Way{"sequence_on_hosts",
            {1, 1},
            by_positions({.tensor = 2}),
            {.micro_batches = 3, .clip = true}},
        Way{"sequence_of_three", {3}, by_positions({.tensor = 3}), {.clip = true}},
        Way{"sequence_recomputed_replicas",
            {2, 2},
            by_positions({.tensor = 2}),
            {.micro_batches = 2, .clip = true, .recompute = true}},
        Way{"sequence_in_stages",
            {4},
            by_positions({.pipeline = 2, .tensor = 2}),
            {.micro_batches = 4, .clip = true}},
        Way{"sequence_in_chunks",
            {2, 2},
            by_positions({.pipeline = 2, .tensor = 2, .schedule = "interleaved", .chunks = 2}),
            {.micro_batches = 4}},
        Way{"sequence_and_context",
            {4},
            by_positions({.tensor = 2, .context = 2, .attention = plan::AttentionForm::kHeads}),
            {.micro_batches = 2, .clip = true}},
        Way{"shards_and_sequence",
            {2, 2},
            by_positions(fsdp(3, 2)),
            {.micro_batches = 2, .clip = true, .prefetch = 1}},
        Way{"sharded_state_and_sequence", {4}, by_positions(fsdp(1, 2)), {.recompute = true}},
        Way{"sequence_of_four_axes",
            {8, 8},
            by_positions({.pipeline = 2, .tensor = 2, .context = 2, .schedule = "zero_bubble"}),
            {.micro_batches = 2, .clip = true}},
        Way{"context", {2}, {.context = 2}},
        Way{"context_on_hosts", {1, 2}, {.context = 3}, {.micro_batches = 2, .clip = true}},
        Way{"context_recomputed", {4}, {.context = 4}, {.micro_batches = 2, .recompute = true}},
        Way{"context_replicas", {2, 2}, {.context = 2}, {.clip = true}},
        Way{"context_by_heads", {2}, {.context = 2, .attention = plan::AttentionForm::kHeads}},
        Way{"context_in_stages", {4}, {.pipeline = 2, .context = 2}, {.micro_batches = 3}},
        Way{"context_and_tensor",
            {4},
            {.tensor = 2, .context = 2, .attention = plan::AttentionForm::kHeads},
            {.micro_batches = 2}},
        Way{"shards_of_slices", {4}, fsdp(3, 2), {.micro_batches = 2, .clip = true}},
        Way{"shards_of_slices_on_hosts", {2, 2}, fsdp(3, 2), {.prefetch = 1, .recompute = true}},
        Way{"sharded_gradients_of_slices", {4}, fsdp(2, 2), {.micro_batches = 2}},
        Way{"sharded_state_of_slices", {6}, fsdp(1, 3), {.clip = true}},
        Way{"shards_of_slices_in_each_host",
            {4, 4},
            fsdp(3, 2, 1, true),
            {.micro_batches = 2, .clip = true, .prefetch = 1}},
        Way{"shards_and_positions", {4}, fsdp(3, 1, 2), {.micro_batches = 2, .clip = true}},
        Way{"shards_of_slices_and_positions", {4, 4}, fsdp(2, 2, 2), {.clip = true}},
        Way{"shards_of_stages", {4}, fsdp_in_stages(1, 2), {.micro_batches = 3, .clip = true}},
        Way{"shards_of_stages_gpipe",
            {6},
            fsdp_in_stages(1, 2, "gpipe"),
            {.micro_batches = 2, .clip = true}},
        Way{"shards_of_stages_on_hosts",
            {2, 2},
            fsdp_in_stages(2, 2),
            {.micro_batches = 4, .clip = true, .prefetch = 1, .recompute = true}},
        Way{"shards_of_chunks",
            {4},
            fsdp_in_stages(1, 2, "interleaved", 2),
            {.micro_batches = 4, .clip = true}},
        Way{"shards_and_zero_bubble",
            {4},
            fsdp_in_stages(1, 2, "zero_bubble"),
            {.micro_batches = 3, .clip = true}},
        Way{"shards_and_zero_bubble_v",
            {2, 2},
            fsdp_in_stages(2, 2, "zero_bubble_v", 2),
            {.micro_batches = 3, .clip = true, .prefetch = 2}},
        Way{"shards_of_stages_in_each_host",
            {4, 4},
            {.kind = Strategy::Kind::kFsdp, .stage = 1, .hybrid = true, .pipeline = 2},
            {.micro_batches = 2, .clip = true}},
        Way{"sharded_parameters_of_stages",
            {4},
            fsdp_in_stages(3, 2),
            {.micro_batches = 3, .clip = true}},
        Way{"sharded_parameters_and_zero_bubble",
            {3, 3},
            fsdp_in_stages(3, 2, "zero_bubble"),
            {.micro_batches = 3, .prefetch = 1, .recompute = true}},
        Way{"sharded_parameters_of_chunks_in_each_host",
            {4, 4},
            {.kind = Strategy::Kind::kFsdp,
             .hybrid = true,
             .pipeline = 2,
             .schedule = "zero_bubble_v",
             .chunks = 2},
            {.micro_batches = 3, .prefetch = 1}},
        Way{"shards_of_slices_of_stages",
            {8},
            {.kind = Strategy::Kind::kFsdp, .stage = 1, .pipeline = 2, .tensor = 2},
            {.micro_batches = 2, .clip = true}},
        Way{"sharded_parameters_of_stages_and_sequence",
            {8},
            by_positions({.kind = Strategy::Kind::kFsdp, .stage = 3, .pipeline = 2, .tensor = 2}),
            {.micro_batches = 2, .recompute = true}},
        Way{"shards_of_stages_and_positions",
            {8},
            {.kind = Strategy::Kind::kFsdp, .stage = 2, .pipeline = 2, .context = 2},
            {.micro_batches = 2, .clip = true}},
        Way{"five_axes",
            {16, 16},
            by_positions({.kind = Strategy::Kind::kFsdp,
                          .stage = 1,
                          .hybrid = true,
                          .pipeline = 2,
                          .tensor = 2,
                          .context = 2}),
            {.micro_batches = 2, .clip = true}},
        Way{"four_axes",
            {8, 8},
            {.pipeline = 2, .tensor = 2, .context = 2, .schedule = "zero_bubble"},
            {.micro_batches = 2, .clip = true}},
        Way{"three_axes", {4, 4}, {.pipeline = 2, .tensor = 2}, {.micro_batches = 2, .clip = true}},
        with_norms(kLars, {"norms_of_stages", {2}, {.pipeline = 2}, {.micro_batches = 2}}),
        with_norms(kLamb, {"norms_of_slices", {2}, {.tensor = 2}}),
        with_norms(kLars, {"norms_of_slices_of_three", {1, 2}, {.tensor = 3}, {.clip = true}}),
        with_norms(kLamb,
                   {"norms_of_slices_of_replicas", {2, 2}, {.tensor = 2}, {.micro_batches = 2}}),
        with_norms(kLamb, {"norms_and_sequence",
                           {4},
                           by_positions({.tensor = 2}),
                           {.clip = true, .recompute = true}}),
        with_norms(kLars, {"norms_of_slices_and_positions", {2, 2}, {.tensor = 2, .context = 2}}),
        with_norms(kLamb, {"norms_of_slices_of_stages",
                           {4, 4},
                           {.pipeline = 2, .tensor = 2},
                           {.micro_batches = 3, .clip = true}}),
        with_norms(kLars, {"norms_of_slices_of_chunks",
                           {4},
                           {.pipeline = 2, .tensor = 2, .schedule = "zero_bubble_v", .chunks = 2},
                           {.micro_batches = 3}}),
        with_norms(kLamb, {"norms_of_shards_of_slices", {4}, fsdp(3, 2), {.micro_batches = 2}}),
        with_norms(kLars, {"norms_of_shards_of_slices_in_each_host",
                           {4, 4},
                           fsdp(1, 2, 1, true),
                           {.clip = true, .prefetch = 1}}),
        with_norms(kLamb, {"norms_of_shards_of_slices_of_stages",
                           {8},
                           {.kind = Strategy::Kind::kFsdp, .stage = 2, .pipeline = 2, .tensor = 2},
                           {.micro_batches = 2, .clip = true}}),
        with_norms(kLamb, {"norms_of_five_axes",
                           {16, 16},
                           by_positions({.kind = Strategy::Kind::kFsdp,
                                         .stage = 1,
                                         .hybrid = true,
                                         .pipeline = 2,
                                         .tensor = 2,
                                         .context = 2}),
                           {.micro_batches = 2, .clip = true}})),
    [](const auto& way) { return way.param.name; });

/// Bytes that the sockets at both ends of a connection keep at most.
std::int64_t socket_buffers() {
  std::int64_t sum = 0;
  for (const char* which : {"tcp_wmem", "tcp_rmem"}) {
    std::ifstream limits(std::string("/proc/sys/net/ipv4/") + which);
    std::int64_t least = 0, usual = 0, most = 0;
    limits >> least >> usual >> most;
    sum += most;
  }
  return sum;
}

TEST(ModelParallel, SendsLargerThanAllBuffersBlockNobody) {
  constexpr std::int64_t kWidth = 64;
  const Problem wide{"wide mlp",
                     [] {
                       return std::make_shared<model::Mlp>(
                           std::vector<std::int64_t>{8, kWidth, kWidth, kWidth, 5});
                     },
                     [](std::int64_t rows) {
                       return Batch{torch::randn({rows, 8}), torch::randint(5, {rows})};
                     },
                     torch::kFloat32};
  const std::int64_t bytes_of_a_row = kWidth * std::int64_t{sizeof(float)};
  const std::int64_t moved = socket_buffers() + (std::int64_t{8} << 20);
  const std::vector<Batch> batches = wide.batches(1, 2 * moved / bytes_of_a_row);
  const auto one = test::train_by_plan(run_of({"", {1}, {}, {}}, wide, batches));
  for (const auto& [schedule, stages] : {std::pair("gpipe", 4), {"1f1b", 2}, {"pipedream", 4}}) {
    const Way way{schedule,
                  std::vector<int>(static_cast<std::size_t>(stages), 1),
                  {.pipeline = stages, .schedule = schedule},
                  {.micro_batches = 2}};
    const auto runs = test::train_by_plan(run_of(way, wide, batches));
    EXPECT_NEAR(runs.back().losses[0], one[0].losses[0], 1e-4 * one[0].losses[0])
        << schedule << ", " << stages << " stages";
  }
}

// Their copies are never compared: saved and shown is that of the first stage.
TEST(ModelParallel, StagesThatShareAShardUpdateItAlike) {
  const Problem problem = test::gpt_problem();
  for (const std::vector<int>& hosts : {std::vector<int>{3, 3}, {1, 5}}) {
    const PlanRun run = run_of({"", hosts, fsdp_in_stages(1, 2), {.micro_batches = 2}}, problem,
                               problem.batches(3, 13));
    std::vector<torch::Tensor> weights(6);
    test::on_plan_ranks(run, [&](PlanRank& rank) {
      rank.steps(3);
      // others than the own shard are those before the last step
      weights[static_cast<std::size_t>(rank.rank())] =
          rank.chain->named_parameters().begin()->value().detach().clone();
      throw_if_error(rank.groups.world().barrier());
    });
    for (std::size_t shard = 0; shard < 3; ++shard) {
      EXPECT_TRUE(weights[2 * shard].equal(weights[2 * shard + 1])) << "shard " << shard;
      EXPECT_FALSE(weights[2 * shard].equal(weights[(2 * shard + 2) % 6]));
    }
  }
}

/// Whole tensors by name, put together from what ranks save.
using State = std::map<std::string, torch::Tensor>;

void add(State& state, const TensorPiece& piece) {
  const auto unknown = std::numeric_limits<double>::quiet_NaN();
  torch::Tensor& whole =
      state.try_emplace(piece.name, torch::full(piece.shape, unknown, piece.values.options()))
          .first->second;
  torch::Tensor part = whole.view(-1).slice(0, piece.begin, piece.end);
  if (piece.box) {
    part = whole;
    for (std::size_t d = 0; d < piece.shape.size(); ++d) {
      part = part.narrow(static_cast<std::int64_t>(d), piece.box->offsets[d], piece.box->sizes[d]);
    }
  }
  EXPECT_TRUE(part.isnan().all().item<bool>()) << piece.name << " is saved twice";
  part.copy_(piece.values.view(part.sizes()));
}

/// Adds what a rank saves: parameters and optimizer state.
void save(PlanRank& rank, std::mutex& mutex, State& all) {
  ParameterStore& store = rank.store();
  const std::scoped_lock lock(mutex);
  for (const TensorPiece& piece : store.pieces()) add(all, piece);
  if (store.whole() && rank.rank() == 0) {
    for (const auto& [name, value] : test::values_of(*rank.chain)) all[name] = value;
    for (const auto& [name, value] : store.optimizer().state()) all[name] = value.clone();
  }
}

/// Trains on from `from`, if there is something, and returns what is left.
State train_on(const PlanRun& run, const State& from) {
  State all;
  std::mutex mutex;
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    if (!from.empty()) {
      const torch::NoGradGuard no_grad;
      for (auto& p : rank.chain->named_parameters()) p.value().copy_(from.at(p.key()));
      State optimizer;
      for (const auto& [name, value] : from) {
        if (name.starts_with("optimizer.")) optimizer[name] = value;
      }
      throw_if_error(rank.store().whole()
                         ? rank.store().optimizer().load_state(optimizer)
                         : rank.store().load_state([&](const std::string& name, std::int64_t begin,
                                                       std::int64_t end) -> Result<torch::Tensor> {
                             return from.at(name).flatten().slice(0, begin, end).clone();
                           }));
    }
    rank.steps(rank.run.batches.size());
    save(rank, mutex, all);
    throw_if_error(rank.groups.world().barrier());
  });
  return all;
}

// Also where the module has the whole model meanwhile, as at the end of a run.
TEST(ModelParallelState, IsReadByEveryMeshToTheBit) {
  const Problem problem = test::gpt_problem();
  const std::vector<Batch> batches = problem.batches(2, 8);
  const StepOptions step{.micro_batches = 4};
  const std::vector<Way> ways = {Way{"dp 4, tp 2", {8}, {.tensor = 2}, step},
                                 Way{"fsdp 2 (stage 1), pp 2", {4}, fsdp_in_stages(1, 2), step},
                                 Way{"dp 2", {2}, {}, step},
                                 Way{"dp 4", {4}, {}, step},
                                 Way{"pp 4", {4}, {.pipeline = 4}, step},
                                 Way{"fsdp 4", {4}, fsdp(3, 1), step},
                                 Way{"fsdp 8", {8}, fsdp(3, 1), step},
                                 Way{"tp 2, positions", {2}, by_positions({.tensor = 2}), step},
                                 Way{"fsdp 4, tp 2", {8}, fsdp(3, 2), step},
                                 Way{"fsdp 2 (stage 1), tp 2, cp 2", {8}, fsdp(1, 2, 2), step},
                                 Way{"fsdp 3, pp 2", {6}, fsdp_in_stages(3, 2), step},
                                 Way{"dp 2, pp 2, tp 2", {8}, {.pipeline = 2, .tensor = 2}, step}};
  for (const std::size_t trained : {0, 1}) {
    const State first = train_on(run_of(ways[trained], problem, batches), {});
    for (const auto& [name, value] : first) {
      EXPECT_FALSE(value.isnan().any().item<bool>()) << name << " is not saved completely";
    }
    for (const Way& way : ways) {
      PlanRun run = run_of(way, problem, {});
      run.options.strategy = way.strategy;
      const State read = train_on(run, first);
      ASSERT_EQ(read.size(), first.size()) << way.name;
      for (const auto& [name, value] : first) {
        EXPECT_TRUE(read.at(name).equal(value)) << way.name << ": " << name;
      }
    }
  }
}

TEST(ModelParallelState, IsTheSameWhileTheModelIsReadable) {
  const Problem problem = test::gpt_problem();
  for (const Strategy& strategy :
       {Strategy{.pipeline = 2, .tensor = 2}, fsdp(3, 2), fsdp_in_stages(1, 2)}) {
    const PlanRun run =
        run_of({"", {4}, strategy, {.micro_batches = 2}}, problem, problem.batches(1, 8));
    State before, meanwhile;
    std::mutex mutex;
    test::on_plan_ranks(run, [&](PlanRank& rank) {
      rank.steps(1);
      save(rank, mutex, before);
      const auto readable = rank.store().gather();
      save(rank, mutex, meanwhile);
    });
    EXPECT_GT(before.size(), 0U);
    ASSERT_EQ(before.size(), meanwhile.size());
    for (const auto& [name, value] : before) EXPECT_TRUE(meanwhile.at(name).equal(value)) << name;
  }
}

}  // namespace
}  // namespace stormo::train
