// Where ranks train on by themselves between averages.
#include <stormo/train/run/elastic_run.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include <stormo/base/units.h>
#include <stormo/plan/project.h>
#include <stormo/train/elastic/replica_exchange.h>

namespace stormo::train {

/// Null: ranks do not train by themselves, or there is one rank.
AveragedStore* ElasticRun::averaged() {
  return is_local() ? dynamic_cast<AveragedStore*>(&model_.store()) : nullptr;
}

FusedOptimizer& ElasticRun::own_optimizer() {
  return dynamic_cast<FusedOptimizer&>(model_.store().optimizer());
}

void ElasticRun::note_update() {
  if (is_local()) replica().samples += own_samples_;
}

// Before it is done: nothing else can fail in it. While ranks average behind it, the member has to
// be in the next step, in which it waits, and which it aborts when it misses another one.
void ElasticRun::tell_update() {
  session_.tell(protocol::UpdateApplied{.epoch = order_.epoch});
  session_.note_progress(/*waits=*/true);
}

void ElasticRun::note_average(std::int64_t step) {
  replica().take({.epoch = session_.epoch(), .step = static_cast<std::uint64_t>(step)});
  averages_anew_ = false;
}

// A rank that was alone has had nobody to average with: its period begins when others come.
void ElasticRun::keep_replica() {
  if (averaged() == nullptr) return note_average(run_.state.step);
  replica().began_with = averaged()->began_with();
}

// The parameters of donors are their own, and stay it. The last step is committed, but ranks may
// have been lost before all had the average behind it.
Status ElasticRun::go_on_locally() {
  const std::int64_t step = run_.state.step;
  const auto& actions = run_.setup.plan.actions;
  if (ends_period(step)) {
    const bool with_state = std::ranges::any_of(
        actions, [](const plan::Action& a) { return row_of(a.kind).averages_state; });
    STORMO_ASSIGN_OR_RETURN(averages_anew_, settle_average(run_.world, own_optimizer(), replica(),
                                                           step, session_.is_donor(), with_state));
  }
  if (protocol::Healing::is_needed(session_.record())) STORMO_RETURN_IF_ERROR(copy_replicas());
  averaged()->go_on(replica().began_with, step > 0 ? run_.rate_of(step - 1) : 0);
  averaged()->count_before(replica().samples);
  return {};
}

// Each newcomer has a donor, on its host if there is one.
Status ElasticRun::copy_replicas() {
  const protocol::ElasticRecord& record = session_.record();
  const std::string me = session_.identity();
  std::uint32_t newcomers = 0;
  for (const protocol::ElasticEntry& member : record.members) {
    const std::string& newcomer = member.id.identity;
    if (record.is_donor(newcomer)) continue;
    const std::string& donor = protocol::Healing::donor_of(record, newcomers++, newcomer);
    if (donor == me) {
      STORMO_RETURN_IF_ERROR(
          send_replica(run_.world, own_optimizer(), replica(), session_.rank_of(newcomer)));
    }
    if (newcomer != me) continue;
    STORMO_ASSIGN_OR_RETURN(
        const std::uint64_t bytes,
        receive_replica(run_.world, own_optimizer(), replica(), session_.rank_of(donor)));
    const bool is_near = protocol::host_of(donor) == protocol::host_of(me);
    session_.say(fmt::format("has the state: {} from its host, {} from others",
                             format_bytes(is_near ? bytes : 0), format_bytes(is_near ? 0 : bytes)));
  }
  return {};
}

// With what each has: nobody that is left has taken the one before. At the end of a run there was
// none behind the last step.
Status ElasticRun::average_anew() {
  run_.world.set_section(fmt::format("average after step {}", run_.state.step));
  session_.note_progress(/*waits=*/true);
  run_.state.before_update();
  const Interval interval(run_.lanes, Lane::kCommunication, "average");
  averaged()->count_before(replica().samples);
  for (const plan::Action& a : project(model_.runner().plan(), run_.mesh_rank()).actions) {
    const plan::ActionRow& row = row_of(a.kind);
    const bool updates = row.outer_updates() && has_outer_update(run_.state.step);
    if (row.averages() || updates) STORMO_RETURN_IF_ERROR(model_.store().perform(a, 0));
  }
  note_average(run_.state.step);
  return {};
}

}  // namespace stormo::train
