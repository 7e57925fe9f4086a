#include <stormo/train/run/elastic_run.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <limits>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <stormo/plan/project.h>
#include <stormo/train/elastic/membership_log.h>
#include <stormo/train/failure.h>
#include <stormo/train/loop/run_facts.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/run/membership_event.h>

namespace stormo::train {
namespace {

using protocol::AgreeVerdict;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::uint64_t count_of(std::int64_t n) { return static_cast<std::uint64_t>(n); }

/// As ranks compare it by maxima: two numbers that add up to kMost if all are equal. 0: not at all.
std::array<std::int64_t, 2> compared(std::uint64_t hash) {
  if (hash == 0) return {0, 0};
  const auto n = static_cast<std::int64_t>(hash >> 1);
  return {n, kMost - n};
}

bool differ(std::int64_t most, std::int64_t most_of_rest) {
  return (most != 0 || most_of_rest != 0) && most != kMost - most_of_rest;
}

/// What ranks compare in a commit: numbers for all of them, and for each part of the model, of its
/// gradients and of its state.
constexpr std::size_t kCommon = 2, kOfPart = 4;
static_assert(kCommon + kOfPart == plan::kCommittedNumbers);

AgreeVerdict verdict_of(std::span<const std::int64_t> most_of_parts) {
  bool gradients = false, states = false;
  for (auto of = most_of_parts; !of.empty(); of = of.subspan(kOfPart)) {
    gradients |= differ(of[0], of[1]);
    states |= differ(of[2], of[3]);
  }
  if (states) return AgreeVerdict::kStatesDiffer;
  return gradients ? AgreeVerdict::kGradientsDiffer : AgreeVerdict::kCommit;
}

/// Of the part of the model that has most; `state` is that of this rank's.
std::size_t most_slices(const RunSetup& setup, const TrainingState& state) {
  std::size_t most = state.slices();
  const int stages = num_stages(setup.plan.mesh);
  for (int s = 0; stages > 1 && s < stages; ++s) {
    most = std::max(most, TrainingState::count_slices(
                              parameters_of_stage(setup.plan.model, *setup.task.module, s),
                              setup.options.optimizer));
  }
  return most;
}

/// A state is its tensors times the gradients. From host to host a step carries a fifth of what its
/// gradients have, so it is at most about a fifth longer, whatever the line can do. Inside of a
/// host it carries as much as them.
protocol::Healing healing_of(const RunSetup& setup, const TrainingState& state) {
  constexpr std::size_t kPartOfGradients = 5;
  const auto slices = std::max<std::size_t>(1, most_slices(setup, state));
  const auto in_each_of = [&](std::size_t steps) {
    return static_cast<std::uint32_t>((slices + steps - 1) / steps);
  };
  return {.slices = static_cast<std::uint32_t>(slices),
          .slices_per_step = in_each_of(kPartOfGradients * state.tensors()),
          .near_slices_per_step = in_each_of(state.tensors())};
}

}  // namespace

ElasticRun::~ElasticRun() {
  if (!session_.has_left()) return;
  if (is_local() && started()) keep_replica();
  const HostCopyStore* const copy = model_.has_store() ? shared() : nullptr;
  if (copy != nullptr && copy->memory() != nullptr) {
    session_.kept.memory = copy->memory();
    session_.kept.memory_has_values = true;
  }
  std::unique_ptr<Optimizer> optimizer = model_.take_optimizer();
  if (optimizer) session_.kept.optimizer = std::move(optimizer);
}

// In the first epoch as every run. Later this process has the state, or gets it in slices.
Status ElasticRun::make_parameters() {
  if (!session_.is_open()) {
    STORMO_RETURN_IF_ERROR(LockStepRun::make_parameters());
    return share_state(/*has_state=*/true);
  }
  KeptState& kept = session_.kept;
  if (run_.world.rank() == 0) {
    STORMO_RETURN_IF_ERROR(run_.state.take_over(session_.earlier));
    if (kept.best) run_.state.best = *kept.best;
  }
  STORMO_RETURN_IF_ERROR(meet_in_mesh());
  model_.go_on(kept.optimizer);
  model_.store().zero_grad();
  STORMO_RETURN_IF_ERROR(share_state(session_.is_donor()));
  return take_progress();
}

// From the first donor: where the epoch begins.
Status ElasticRun::take_progress() {
  KeptState& kept = session_.kept;
  const Rank from = session_.rank_of(session_.record().donors.front());
  std::array<std::int64_t, 3> progress = {kept.step, kept.samples, kept.meets ? 1 : 0};
  STORMO_RETURN_IF_ERROR(run_.world.broadcast(std::span<std::int64_t>(progress), from));
  kept.step = run_.state.step = progress[0];
  kept.samples = run_.state.samples = progress[1];
  run_.first_sample = run_.state.samples;  // the rate is that of this epoch
  kept.meets = progress[2] != 0;
  if (count_of(run_.state.step) != session_.record().base_step) {
    return Status(Code::kException, "the first donor has another step than the record");
  }
  return protocol::Healing::is_needed(session_.record()) ? take_rest() : Status();
}

Status ElasticRun::prepare() {
  if (!run_.setup.plan.commits) {
    return invalid_argument(
        "the plan of an elastic run has to commit before it updates: set TrainerOptions::commits");
  }
  STORMO_RETURN_IF_ERROR(LockStepRun::prepare());
  if (!session_.is_open()) return open_session();
  return averaged() != nullptr ? go_on_locally() : Status();
}

Status ElasticRun::open_session() {
  KeptState& kept = session_.kept;
  kept.step = run_.state.step;
  kept.samples = run_.state.samples;
  STORMO_RETURN_IF_ERROR(
      session_.open(elastic_terms(run_.setup, state(), run_.state.step, run_.steps)));
  return session_.enter_first();
}

Status ElasticRun::begin_progress() {
  session_.started();
  progress_.go_on_since(session_.kept.began);
  log_epoch();
  if (session_.record().epoch == 1) return LockStepRun::begin_progress();
  run_.observer().on_warning(membership_event(session_.record(), session_.change(), run_.hosts()));
  return {};
}

// The next epoch may be of another process.
void ElasticRun::log_epoch() const {
  const std::string& folder = run_.options.checkpoint.directory;
  if (folder.empty() || run_.world.rank() != 0) return;
  const bool begins = session_.record().base_step == 0 && !run_.options.resume;
  const Status logged =
      log_membership(membership_log_in(folder), session_.record(), run_.hosts(), begins);
  if (!logged.ok()) run_.warn("no_membership_log", "no log of members: " + logged.message());
}

Status ElasticRun::train() {
  STORMO_RETURN_IF_ERROR(follow_averages());
  begin_training();
  while (!is_over_ && !session_.has_left()) STORMO_RETURN_IF_ERROR(follow(session_.next()));
  progress_.log().pause();
  if (!session_.has_left()) return end();
  session_.kept.step = run_.state.step;
  session_.kept.samples = run_.state.samples;
  if (run_.world.rank() == 0) session_.kept.best = run_.state.best;
  run_.state.before_update();
  return Status(Code::kCancelled, "the epoch is over");
}

Status ElasticRun::follow(const ElasticSession::Order& order) {
  if (std::holds_alternative<protocol::StartGroup>(order)) {
    session_.unread(order);
    session_.leave_epoch();
  } else if (const auto* step = std::get_if<protocol::RunStep>(&order)) {
    return do_step(*step);
  } else if (const auto* hash = std::get_if<protocol::HashState>(&order)) {
    const std::uint64_t of_state =
        is_local() ? replica().averages.hash_after(hash->step) : state().hash();
    session_.tell(protocol::StateHashed{.epoch = hash->epoch, .hash = of_state});
  } else if (const auto* update = std::get_if<protocol::ApplyUpdate>(&order)) {
    return apply_held(*update);
  } else if (std::holds_alternative<protocol::PauseMember>(order)) {
    run_.state.release_folder();
  } else if (const auto* end = std::get_if<protocol::EndMember>(&order)) {
    if (end->is_failure) return Status(Code::kPeerLost, end->why);
    is_over_ = !end->has_left;
    if (is_over_) return {};
    session_.unread(order);  // for whoever asks for another epoch
    session_.leave_epoch();
  } else {
    return Status(Code::kException, "an agreement is ordered outside of a step");
  }
  return {};
}

// A job that ends before its last step was asked to: by a signal of which another rank has told.
Status ElasticRun::end() {
  const bool is_early = run_.state.step < run_.steps;
  if (is_early && run_.signal == 0) {
    const int own = StopSignal::received();
    run_.signal = own != 0 ? own : SIGTERM;
  }
  if (!is_early) run_.signal = 0;
  const bool differ = averaged() != nullptr && !replica().has_average_behind(run_.state.step);
  if (differ) STORMO_RETURN_IF_ERROR(average_anew());
  STORMO_RETURN_IF_ERROR(complete_state(count_of(run_.state.step) + 1));
  STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/false, /*last=*/true));
  run_.state.before_update();
  return model_.store().optimizer().finish();
}

Status ElasticRun::do_step(const protocol::RunStep& order) {
  order_ = order;
  is_updating_ = is_ordered_ = false;
  // whoever sends this rank its slices may still be writing
  const auto end_slices = [this] {
    for (comm::Work& slice : std::exchange(slices_, {})) (void)slice.wait();
  };
  try {
    const Status done = try_step(order);
    if (!done.ok()) end_slices();
    return done.ok() ? done : after_failure(done);
  } catch (...) {
    run_.world.fail(failure_of_current_exception());
    end_slices();
    throw;
  }
}

Status ElasticRun::try_step(const protocol::RunStep& order) {
  STORMO_RETURN_IF_ERROR(run_.world.status());
  const std::string section = fmt::format("step {}", order.step);
  if (std::exchange(gives_up_, false)) {
    model_.store().zero_grad();
    STORMO_RETURN_IF_ERROR(make_runner());
    healing_.reset();
  }
  if (averages_anew_) STORMO_RETURN_IF_ERROR(average_anew());
  if (session_.kept.meets) {
    if (is_state_needed()) STORMO_RETURN_IF_ERROR(complete_state(order.step));
    STORMO_RETURN_IF_ERROR(meet(fmt::format("step {}", order.step - 1), /*agreed=*/true));
    session_.kept.meets = false;
  }
  run_.world.set_section(section);
  session_.note_progress(/*waits=*/false);
  STORMO_RETURN_IF_ERROR(divide_samples(order));
  exchange_slices(order);
  STORMO_RETURN_IF_ERROR(train_one_step().within(section));
  if (std::exchange(is_updating_, false)) {  // ranks do not agree behind this step
    STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/false));
  }
  return ends_epoch_ ? close_epoch() : Status();
}

// A failure of the group ends the epoch for this rank, and nothing else.
Status ElasticRun::after_failure(const Status& failure) {
  const bool of_group = !run_.world.status().ok();
  if (!of_group && !is_ordered_) return failure;
  run_.state.release_folder();  // perhaps others go on, and nobody can say so
  if (std::exchange(is_updating_, false)) {
    // committed and updated: what failed came behind it
    if (shared() != nullptr) STORMO_RETURN_IF_ERROR(shared()->finish_update());
    end_unknown_step();
    session_.kept.meets = ends_period(run_.state.step);
    session_.tell(protocol::UpdateApplied{.epoch = order_.epoch});  // once more changes nothing
  } else {
    gives_up_ = true;
  }
  if (!is_ordered_) session_.tell(protocol::PartFailed{.epoch = order_.epoch});
  return {};
}

// The order may be of the next epoch already.
Status ElasticRun::apply_held(const protocol::ApplyUpdate& order) {
  if (shared() != nullptr) shared()->expect_nobody();
  STORMO_RETURN_IF_ERROR(model_.runner().apply_updates());
  note_update();
  end_unknown_step();
  gives_up_ = false;
  session_.kept.meets = ends_period(run_.state.step);
  session_.tell(protocol::UpdateApplied{.epoch = order.epoch});
  return {};
}

// Until it returns the parameters are those of the step before.
Status ElasticRun::commit() {
  session_.note_progress(/*waits=*/true);
  STORMO_RETURN_IF_ERROR(finish_slices());
  // a gradient of its own does not say that the others have done their part of the step
  if (is_local()) STORMO_RETURN_IF_ERROR(run_.world.barrier());
  // others of the host may update what is being saved as soon as this has been passed
  if (shared() != nullptr) run_.state.before_update();
  session_.forget_former_group();
  session_.tell_wishes();
  session_.tell(protocol::StepReduced{
      .epoch = order_.epoch, .step = order_.step, .gradient_hash = gradient_hash()});
  ElasticSession::Order next = session_.next();
  const auto* agree = std::get_if<protocol::AgreeOn>(&next);
  if (agree != nullptr) {
    STORMO_ASSIGN_OR_RETURN(protocol::StepAgreed agreed, compare(*agree));
    session_.tell(agreed);
    is_over_soon_ = agreed.stops;
    ends_epoch_ = agreed.changes || agreed.stops;
    next = session_.next();
    if (std::holds_alternative<protocol::ApplyUpdate>(next)) {
      is_updating_ = true;
      note_update();
      if (is_local() && !ends_epoch_) tell_update();
      return {};
    }
  }
  is_ordered_ = true;
  session_.unread(std::move(next));
  return Status(Code::kCancelled, "the step is given up");
}

Result<protocol::StepAgreed> ElasticRun::compare(const protocol::AgreeOn& order) {
  std::vector<std::int64_t> most(kCommon + kOfPart * static_cast<std::size_t>(parts()));
  most[0] = order.stops ? 1 : 0;
  most[1] = order.changes ? 1 : 0;
  const auto own = std::span(most).subspan(kCommon + kOfPart * static_cast<std::size_t>(part()));
  std::ranges::copy(compared(order.gradient_hash), own.begin());
  std::ranges::copy(compared(order.state_hash), own.begin() + 2);
  STORMO_RETURN_IF_ERROR(find_largest(run_.world, most));
  const AgreeVerdict verdict = verdict_of(std::span(most).subspan(kCommon));
  if (verdict == AgreeVerdict::kGradientsDiffer) {
    STORMO_RETURN_IF_ERROR(note_wrong_gradients(order));
  }
  return protocol::StepAgreed{.epoch = order.epoch,
                              .step = order.step,
                              .verdict = verdict,
                              .stops = most[0] != 0,
                              .changes = most[1] != 0};
}

// The update is done, whatever becomes of this.
Status ElasticRun::agree(const StepOutcome& mine) {
  if (averaged() != nullptr) note_average(run_.state.step + 1);
  if (!ends_epoch_) session_.tell(protocol::UpdateApplied{.epoch = order_.epoch});
  STORMO_RETURN_IF_ERROR(LockStepRun::agree(mine));
  session_.kept.meets = true;
  is_updating_ = false;
  return {};
}

// Where the epoch ends with this step a member says that it has updated when it has reported it,
// for which others may need it in this group.
Status ElasticRun::close_epoch() {
  const bool shows = !is_over_soon_ && session_.kept.meets;
  const Status shown = shows ? progress_.show(/*agreed=*/true) : Status();
  session_.tell(protocol::UpdateApplied{.epoch = order_.epoch});
  return shown;
}

TrainingState& ElasticRun::state() {
  if (!blocks_) blocks_.emplace(model_.store().optimizer());
  return *blocks_;
}

ElasticSession::Terms elastic_terms(const RunSetup& setup, const TrainingState& state,
                                    std::int64_t step, std::int64_t last_step) {
  std::vector<comm::Fact> facts = run_facts(setup);
  std::erase_if(facts, [](const comm::Fact& f) { return f.field == "step plan"; });
  // what others have changed by themselves nobody can follow: their state comes in one piece
  const bool is_local = setup.elastic->kept.replica.has_value();
  std::vector<std::uint32_t> parts;
  const plan::Mesh& mesh = setup.plan.mesh;
  for (Rank r = 0; num_stages(mesh) > 1 && r < mesh.size(); ++r) {
    parts.push_back(static_cast<std::uint32_t>(stage_of(mesh, r)));
  }
  return {.plan_hash = hash_of(facts),
          .step = count_of(step),
          .last_step = count_of(last_step),
          .global_batch = count_of(setup.options.global_batch),
          .healing = is_local ? protocol::Healing() : healing_of(setup, state),
          .parts = std::move(parts)};
}

}  // namespace stormo::train
