#include <stormo/train/loop/server_report.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stormo/checkpoint/exchange.h>
#include <stormo/plan/project.h>
#include <stormo/server/message/data_message.h>

namespace stormo::train {

/// For another rank of the worker.
static void fields(auto& visit, transport::Like<ServedWorker::ShardReport> auto& shard) {
  visit("report of a shard", shard.bytes, shard.state);
}

namespace {

using Shards = std::vector<ServedWorker::ShardReport>;

/// By rank of a worker that is cut; else those of this rank alone. The first rank of a worker gets
/// those of all its ranks.
Result<std::vector<Shards>> shards_of_parts(RunContext& run, const ServedWorker& worker) {
  STORMO_ASSIGN_OR_RETURN(Shards own, worker.shard_reports());
  std::vector<Shards> out;
  if (model_axes(run.setup.plan.mesh).empty()) {
    out.push_back(std::move(own));
    return out;
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          checkpoint::gather_texts(run.world, server::encode(own)));
  for (const std::string& text : texts) {
    STORMO_ASSIGN_OR_RETURN(out.emplace_back(), server::decode<Shards>(text));
  }
  return out;
}

}  // namespace

// Shard s lies on server s % processes; that of a part on the part's server of this number.
Status note_servers(RunContext& run, const ServedWorker& worker) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<Shards> parts, shards_of_parts(run, worker));
  std::vector<protocol::Staleness> staleness;
  std::vector<observe::ServerRecord>& servers = run.end.servers;
  const auto processes = static_cast<std::size_t>(run.options.servers.processes);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const Shards& shards = parts[part];
    if (!shards.empty()) servers.resize(processes);
    const std::size_t of_part = (processes + parts.size() - 1 - part) / parts.size();
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const std::vector<protocol::WorkerState>& workers = shards[s].state.workers;
      staleness.resize(workers.size());
      for (std::size_t w = 0; w < workers.size(); ++w) staleness[w].add(workers[w].staleness);
      if (processes == 0) continue;
      observe::ServerRecord& server = servers[part + s % of_part * parts.size()];
      server.bytes += shards[s].bytes;
      server.pulls.resize(workers.size());
      server.pushes.resize(workers.size());
      for (std::size_t w = 0; w < workers.size(); ++w) {
        server.pulls[w] += workers[w].reads;
        server.pushes[w] += workers[w].pushes;
      }
    }
  }
  for (const protocol::Staleness& of : staleness) {
    observe::StalenessRecord record{.gradients = static_cast<std::int64_t>(of.count),
                                    .mean = of.mean(),
                                    .max = static_cast<std::int64_t>(of.max)};
    record.histogram.assign(of.histogram.begin(), of.histogram.end());
    while (!record.histogram.empty() && record.histogram.back() == 0) record.histogram.pop_back();
    run.end.staleness.push_back(std::move(record));
  }
  return {};
}

}  // namespace stormo::train
