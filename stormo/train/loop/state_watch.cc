#include <stormo/train/loop/state_watch.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

using plan::Placement;
using protocol::kHashNumbers;

// Each part has its own numbers in what ranks agree on in every step.
constexpr std::size_t kMostParts = 64;

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

/// The same names whatever was wrong.
decltype(observe::WarningRecord::fields) fields_of(const WrongReplica& wrong) {
  using Value = observe::WarningRecord::Value;
  const auto known = [](bool is_known, auto value) { return is_known ? Value(value) : Value(); };
  const bool is_held = wrong.held.has_value();
  const WrongReplica::Held held = wrong.held.value_or(WrongReplica::Held());
  return {{"rank", known(wrong.rank >= 0, std::int64_t{wrong.rank})},
          {"host", known(is_held, held.host)},
          {"tensor", known(is_held, held.first.tensor)},
          {"first_element", known(is_held, held.first.first)},
          {"last_element", known(is_held, held.first.last)},
          {"places", known(is_held, held.places)},
          {"right_rank", known(is_held, std::int64_t{held.right})}};
}

}  // namespace

std::vector<int> parts_of_state(const plan::StepPlan& plan, const std::optional<MeshRanks>& ranks) {
  std::vector<std::size_t> axes;  // along which ranks hold different parts
  for (std::size_t a = 0; a < plan.mesh.axes.size(); ++a) {
    const bool same = plan.parameters[a] == Placement::kReplicate &&
                      plan.optimizer_state[a] == Placement::kReplicate;
    if (!same) axes.push_back(a);
  }
  std::map<std::vector<int>, int> numbers;
  std::vector<int> out;
  const int size = ranks ? static_cast<int>(ranks->numbers.size()) : plan.mesh.size();
  for (Rank r = 0; r < size; ++r) {
    const Rank in_mesh = ranks ? ranks->numbers[static_cast<std::size_t>(r)] : r;
    const std::vector<int> all = plan.mesh.coordinates(in_mesh);
    std::vector<int> at;
    for (const std::size_t a : axes) at.push_back(all[a]);
    out.push_back(numbers.try_emplace(at, static_cast<int>(numbers.size())).first->second);
  }
  return numbers.size() == out.size() ? std::vector<int>() : out;
}

std::unique_ptr<StateWatch> StateWatch::create(RunContext& run, RunModel& model, WatchedJob job) {
  if (run.setup.verify_state == 0) return nullptr;
  const plan::StepPlan& plan = run.setup.plan;
  auto* const optimizer = dynamic_cast<FusedOptimizer*>(&model.store().optimizer());
  std::vector<int> parts = parts_of_state(plan, run.setup.mesh_ranks);
  const bool in_step = longest_delay(plan) == 0 && !is_diverged(plan);
  const bool few = !parts.empty() && std::ranges::max(parts) < static_cast<int>(kMostParts);
  if (optimizer != nullptr && in_step && few) {
    return std::unique_ptr<StateWatch>(
        new StateWatch(run, *optimizer, std::move(parts), std::move(job)));
  }
  if (run.setup.verify_state > 0) {
    run.warn("not_verified",
             "train.verify_state: nothing is compared, because no two ranks hold the same state "
             "after each step, or the optimizer is lbfgs");
  }
  return nullptr;
}

StateWatch::StateWatch(RunContext& run, FusedOptimizer& optimizer, std::vector<int> part_of,
                       WatchedJob job)
    : run_(run),
      optimizer_(optimizer),
      part_of_(std::move(part_of)),
      rolling_(run.setup.verify_state),
      job_(std::move(job)) {}

void StateWatch::leave_out(std::vector<bool> incomplete) { incomplete_ = std::move(incomplete); }

bool StateWatch::is_incomplete(Rank rank) const {
  return !incomplete_.empty() && incomplete_[static_cast<std::size_t>(rank)];
}

// What is small and a copy comes first: it is compared in the step in which it was taken.
std::vector<TensorPiece> StateWatch::pieces() const {
  const auto whole = [](const std::string& name, const torch::Tensor& t) {
    return TensorPiece{.name = name, .shape = t.sizes().vec(), .end = t.numel(), .values = t};
  };
  std::vector<TensorPiece> out = {whole(optimizer_key(kStepSlot, "(each parameter)"), counts_)};
  for (std::size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const NamedParameter& p = optimizer_.parameters()[i];
    const OwnedRange& own = optimizer_.owned()[i];
    if (own.begin == own.end) continue;
    torch::Tensor values = own.weights;
    if (!values.defined()) values = p.tensor.detach();
    if (values.numel() > own.end - own.begin) {
      values = values.flatten().slice(0, own.begin, own.end);
    }
    out.push_back({.name = p.name,
                   .shape = p.tensor.sizes().vec(),
                   .begin = own.begin,
                   .end = own.end,
                   .values = values});
  }
  for (TensorPiece& piece : optimizer_.state_pieces()) {
    if (optimizer_slot(piece.name) != kStepSlot) out.push_back(std::move(piece));
  }
  const bool has_frozen = std::ranges::all_of(
      run_.setup.plan.frozen, [](Placement p) { return p == Placement::kReplicate; });
  for (const auto& p : run_.setup.task.module->named_parameters()) {
    if (!has_frozen || p.value().requires_grad() || !tensor::has_memory(p.value())) continue;
    out.push_back(whole(p.key(), p.value()));
  }
  return out;
}

void StateWatch::take_blocks() {
  counts_ = torch::tensor(optimizer_.steps(), torch::kInt64);
  blocks_.emplace(pieces());
}

std::vector<double> StateWatch::look(bool everything) {
  const TimePoint start = std::chrono::steady_clock::now();
  if (everything || rolling_.begins()) take_blocks();
  const protocol::RollingCheck::Slice slice =
      everything ? protocol::RollingCheck::Slice{0, blocks_->size()}
                 : rolling_.slice(blocks_->size());
  look_ = blocks_->hash(slice.first, slice.last);
  everything_ = everything;
  const TimePoint end = std::chrono::steady_clock::now();
  rolling_.note(seconds(end - start), last_look_ ? seconds(start - *last_look_) : 0);
  last_look_ = end;
  const auto parts = static_cast<std::size_t>(std::ranges::max(part_of_)) + 1;
  std::vector<double> numbers(kHashNumbers * parts + 1);
  const auto mine = static_cast<std::size_t>(part_of_[static_cast<std::size_t>(run_.world.rank())]);
  if (!is_incomplete(run_.world.rank())) {
    protocol::put_hash(look_,
                       std::span(numbers).subspan(kHashNumbers * mine).first<kHashNumbers>());
  }
  numbers.back() = rolling_.wanted();
  return numbers;
}

Status StateWatch::judge(std::span<const double> sums, std::int64_t step) {
  std::vector<int> ranks_in(sums.size() / kHashNumbers);  // by part
  for (Rank rank = 0; rank < run_.world.size(); ++rank) {
    const int part = part_of_[static_cast<std::size_t>(rank)];
    if (!is_incomplete(rank)) ++ranks_in[static_cast<std::size_t>(part)];
  }
  bool equal = true;
  for (std::size_t part = 0; part < ranks_in.size(); ++part) {
    const auto sum = sums.subspan(kHashNumbers * part).first<kHashNumbers>();
    equal &= ranks_in[part] == 0 || protocol::are_equal(sum, ranks_in[part]);
  }
  if (!equal) return mend(step);
  everything_ ? rolling_.restart() : rolling_.end_step(sums.back(), run_.world.size());
  return {};
}

Status StateWatch::check_all(std::int64_t step) {
  std::vector<double> numbers = look(/*everything=*/true);
  STORMO_RETURN_IF_ERROR(add_up(run_.world, numbers));
  return judge(numbers, step);
}

// Blocks are taken again: a step may have begun the state of a parameter since, and counts go on.
Status StateWatch::mend(std::int64_t step) {
  take_blocks();
  rolling_.restart();
  std::vector<int> part_of = part_of_;
  int parts = std::ranges::max(part_of) + 1;
  for (Rank rank = 0; rank < run_.world.size(); ++rank) {
    if (is_incomplete(rank)) part_of[static_cast<std::size_t>(rank)] = parts++;  // equal to nobody
  }
  const Result<std::vector<WrongReplica>> wrong =
      heal_replicas(run_.world, part_of, *blocks_, look_);
  if (wrong.status().code() == Code::kMismatch) return end_run(wrong.status().message());
  STORMO_RETURN_IF_ERROR(wrong.status());
  optimizer_.set_steps(
      {counts_.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(counts_.numel())});
  for (const WrongReplica& replica : *wrong) {
    run_.observer().on_warning({.kind = "replica_mismatch",
                                .step = step,
                                .message = replica.found,
                                .fields = fields_of(replica)});
  }
  return note_faulty(*wrong, step);
}

// -1: it is not known which one.
Status StateWatch::note_faulty(const std::vector<WrongReplica>& wrong, std::int64_t step) {
  protocol::FaultyRanks& faulty = job_.faulty != nullptr ? *job_.faulty : faulty_;
  std::string permanent;
  for (const WrongReplica& replica : wrong) {
    const bool is_known = job_.name && replica.rank >= 0;
    const std::string name = is_known ? job_.name(replica.rank) : std::to_string(replica.rank);
    if (!faulty.note(name, step)) continue;
    if (is_known) {
      job_.leave_out(replica.rank);
    } else {
      permanent = replica.found;
    }
  }
  if (permanent.empty()) return {};
  return end_run(fmt::format(
      "wrong bits {} times within {} steps, so this is a fault that stays: {}; take its host out "
      "of service",
      protocol::FaultyRanks::kMost, protocol::FaultyRanks::kWithin, permanent));
}

Status StateWatch::end_run(const std::string& why) {
  std::string saved = run_.state.last_saved();
  if (saved.empty() && job_.faulty != nullptr) {  // it may be of an epoch before
    const Result<std::string> newest =
        checkpoint::newest_checkpoint(run_.options.checkpoint.directory);
    if (newest.ok()) saved = *newest;
  }
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(run_.world, saved));
  return Status(Code::kMismatch,
                why + (saved.empty() ? "; no checkpoint of the run is there to go on from"
                                     : "; go on from the newest checkpoint, whose state was "
                                       "compared before it was saved (--resume): " +
                                           saved));
}

}  // namespace stormo::train
