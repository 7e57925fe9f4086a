// Strategies that a search compares.
//
// Idea: all ways to train that give the same numbers differ in memory and time only, and both can
// be predicted for a plan. So the search lists them all, and leaves the choice to the interpreters
// of plans. Papers: L. Zheng et al., "Alpa: automating inter- and intra-operator parallelism for
// distributed deep learning", OSDI 2022, for the space; here it is small enough to be listed.
#include <stormo/parallel/search/candidates.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <stormo/parallel/pipeline/pipeline_schedule.h>

namespace stormo::parallel {
namespace {

constexpr int kMostMicroBatches = 64;
constexpr int kMostChunks = 4;

/// 1, 2, 4 ... and these multiples of `stages`, up to one for each of `samples`.
std::set<int> numbers_of_micro_batches(int stages, std::int64_t samples) {
  std::set<int> out;
  const auto most = static_cast<int>(std::min<std::int64_t>(samples, kMostMicroBatches));
  for (const int first : {1, stages}) {
    for (int m = first; m <= most; m *= 2) out.insert(m);
  }
  return out;
}

/// The ways to run pipelines of a strategy; it alone if it has none.
std::vector<Strategy> with_schedules(const Strategy& strategy) {
  if (strategy.pipeline == 1) return {strategy};
  std::vector<Strategy> out;
  for (const std::string& name : pipeline_schedule_names()) {
    const PipelineSchedule schedule = pipeline_schedule(name).take_or_throw();
    if (schedule.overlap) continue;  // another training
    for (int chunks = schedule.least_chunks; chunks <= std::min(schedule.most_chunks, kMostChunks);
         ++chunks) {
      out.push_back(strategy);
      out.back().schedule = name;
      out.back().chunks = chunks;
    }
  }
  return out;
}

/// The ways to shard what several ranks have alike.
std::vector<Strategy> with_shards(Strategy strategy, int hosts) {
  std::vector<Strategy> out;
  strategy.kind = Strategy::Kind::kFsdp;
  strategy.parameters = Strategy::Parameters::kSharded;
  for (const bool hybrid : {false, true}) {
    if (hybrid && hosts == 1) continue;
    strategy.hybrid = hybrid;
    for (const int stage : {1, 2, 3}) {
      // a pipeline has all gradients of a stage when it needs the most memory
      if (stage == 2 && strategy.pipeline > 1) continue;
      strategy.stage = stage;
      out.push_back(strategy);
    }
  }
  return out;
}

}  // namespace

std::vector<Candidate> candidates(const Workers& workers, std::int64_t global_batch,
                                  bool by_positions) {
  const int ranks =
      std::accumulate(workers.ranks_per_host.begin(), workers.ranks_per_host.end(), 0);
  const auto hosts = static_cast<int>(workers.ranks_per_host.size());
  std::vector<Strategy> strategies = {{.parameters = Strategy::Parameters::kHostShared},
                                      {.parameters = Strategy::Parameters::kReplicated}};
  const auto add = [&strategies](const std::vector<Strategy>& more) {
    strategies.insert(strategies.end(), more.begin(), more.end());
  };
  add(with_shards({}, hosts));
  for (int stages = 1; stages <= ranks; ++stages) {
    for (int tensor = 1; stages * tensor <= ranks; ++tensor) {
      const int left = by_positions ? ranks / (stages * tensor) : 1;
      for (int context = 1; context <= left; ++context) {
        const int together = stages * tensor * context;
        if (together == 1 || ranks % together != 0) continue;
        for (const plan::AttentionForm form : plan::kAttentionForms) {
          if (context == 1 && form != plan::AttentionForm::kRing) continue;
          for (const bool sequence_parallel : {false, true}) {
            if (sequence_parallel && (tensor == 1 || !by_positions)) continue;
            const Strategy cut{.pipeline = stages,
                               .tensor = tensor,
                               .sequence_parallel = sequence_parallel,
                               .context = context,
                               .attention = form};
            const std::vector<Strategy> ways = with_schedules(cut);
            add(ways);
            for (const Strategy& way : ways) {
              if (together < ranks) add(with_shards(way, hosts));
            }
          }
        }
      }
    }
  }
  std::vector<Candidate> out;
  for (const Strategy& s : strategies) {
    const std::int64_t samples = global_batch / (ranks / ranks_of_replica(s));
    for (const int m : numbers_of_micro_batches(s.pipeline, samples)) {
      for (const bool recompute : {false, true}) out.push_back({s, m, recompute});
    }
  }
  return out;
}

}  // namespace stormo::parallel
