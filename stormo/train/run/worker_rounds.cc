// Steps of a run whose workers do not wait for each other: its plan has no agree. A round is the
// steps between two points where all workers wait for each other: to evaluate, to save, or at the
// end.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include <stormo/checkpoint/exchange.h>
#include <stormo/plan/project.h>
#include <stormo/server/message/data_message.h>
#include <stormo/train/run/training_run.h>

namespace stormo::train {

/// For another rank of the worker.
static void fields(auto& visit, transport::Like<ParameterStore::ShardReport> auto& shard) {
  visit("report of a shard", shard.bytes, shard.state);
}

Status TrainingRun::train_round() {
  STORMO_RETURN_IF_ERROR(store_->join());
  STORMO_RETURN_IF_ERROR(world_.barrier());  // an average waits for all that have joined
  const std::int64_t target = next_common_step();
  round_ = {};
  round_begin_ = state_.step;
  called_ = false;
  const bool one_rank = worker_part(setup_.plan.mesh, 0).parts == 1;  // else they agree in a step
  for (ends_round_ = false; state_.step < target && !ends_round_;) {
    if (one_rank) called_ = progress_->called();
    ends_round_ = called_;  // the step that follows leaves nothing behind
    const std::string section = "step " + std::to_string(state_.step + 1);
    world_.set_section(section);
    STORMO_RETURN_IF_ERROR(train_one_step().within(section));
    const bool usr1 = options_.on_usr1 != OnUsr1::kIgnore && StopSignal::has_usr1();
    if (usr1 || StopSignal::received() != 0) progress_->call();
    if (state_.step < target) STORMO_RETURN_IF_ERROR(show_progress());
  }
  STORMO_RETURN_IF_ERROR(store_->leave());
  return end_round();
}

// The ranks of a worker do the same steps. With server processes the first one tells the ledger
// what all of them have done.
Status TrainingRun::agree_in_worker(const StepOutcome& mine) {
  if (session_) {
    StepOutcome all;
    STORMO_RETURN_IF_ERROR(exchange(mine, all));
    session_->agreed = {.loss_sum = all.loss_sum, .samples = all.samples};
    return {};
  }
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_->over({plan::kWorkerAxis}));
  std::array<double, kAgreedNumbers> sums{mine.loss_sum, static_cast<double>(mine.samples),
                                          progress_->called() ? 1.0 : 0.0};
  STORMO_RETURN_IF_ERROR(ranks->all_reduce(std::span<double>(sums), comm::ReduceOp::kSum));
  called_ = sums[2] > 0;
  return {};
}

void TrainingRun::note_own_step(const StepOutcome& mine) {
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  progress_->add_step(mine.loss_sum, mine.samples);
  ++state_.step;
  state_.samples += loaded_samples_;
  const WorkerProgress::Totals now = progress_->totals();
  const auto samples = now.samples - seen_.samples;
  if (samples > 0) {
    step_loss_ = (now.loss_sum - seen_.loss_sum) / static_cast<double>(samples);
    note_loss(now.loss_sum - seen_.loss_sum, static_cast<double>(samples), 1);
  }
  log_.add(samples);
  seen_ = now;
}

// Workers that were called may have done different numbers of steps. What is saved then is the
// position of the slowest: no sample is left out.
Status TrainingRun::end_round() {
  world_.set_section("after step " + std::to_string(state_.step));
  std::array position{state_.step, state_.samples};
  own_position_ = position;
  STORMO_RETURN_IF_ERROR(
      world_.all_reduce(std::span<std::int64_t>(position), comm::ReduceOp::kMin));
  state_.step = position[0];
  state_.samples = position[1];
  StepOutcome all;
  STORMO_RETURN_IF_ERROR(exchange(round_, all));
  if (world_.rank() == 0) progress_->clear();
  return {};
}

// The first rank of a worker gets those of all its ranks.
Result<std::vector<TrainingRun::Shards>> TrainingRun::shards_of_parts() {
  STORMO_ASSIGN_OR_RETURN(Shards own, store_->shard_reports());
  std::vector<Shards> out;
  if (model_axes(setup_.plan.mesh).empty()) {
    out.push_back(std::move(own));
    return out;
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          checkpoint::gather_texts(world_, server::encode(own)));
  for (const std::string& text : texts) {
    STORMO_ASSIGN_OR_RETURN(out.emplace_back(), server::decode<Shards>(text));
  }
  return out;
}

// Shard s lies on server s % processes; that of a part on the part's server of this number.
Status TrainingRun::note_servers() {
  STORMO_ASSIGN_OR_RETURN(const std::vector<Shards> parts, shards_of_parts());
  std::vector<protocol::Staleness> staleness;
  const auto processes = static_cast<std::size_t>(options_.servers.processes);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const Shards& shards = parts[part];
    if (!shards.empty()) end_.servers.resize(processes);
    const std::size_t of_part = (processes + parts.size() - 1 - part) / parts.size();
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const std::vector<protocol::WorkerState>& workers = shards[s].state.workers;
      staleness.resize(workers.size());
      for (std::size_t w = 0; w < workers.size(); ++w) staleness[w].add(workers[w].staleness);
      if (processes == 0) continue;
      observe::ServerRecord& server = end_.servers[part + s % of_part * parts.size()];
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
    end_.staleness.push_back(std::move(record));
  }
  if (!session_) return {};
  STORMO_ASSIGN_OR_RETURN(const server::Ledger::Turn turn, session_->ledger.look());
  for (const server::Ledger::Losses& l : turn.losses) {
    end_.lost_workers.push_back({.worker = l.worker, .lost = l.lost, .came_back = l.came_back});
  }
  return {};
}

}  // namespace stormo::train
