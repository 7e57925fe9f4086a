#include <stormo/train/elastic/membership_replay.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <stormo/protocol/elastic/elastic_event.h>
#include <stormo/protocol/elastic/elastic_member.h>
#include <stormo/train/elastic/membership_log.h>

namespace stormo::train {
namespace {

using protocol::ElasticRecord;
using protocol::Healing;

constexpr std::string_view kLog = "log://";
/// For one note in the Store.
constexpr Duration kNoteTime = std::chrono::seconds(10);
constexpr std::string_view kFailed = "replay/failed";
/// At that one, which is seldom there.
constexpr Duration kGlance = std::chrono::milliseconds(50);
/// What a note says of the end of an epoch.
constexpr std::string_view kGoesOn = "goes on", kStops = "stops";

class Replay final : public membership::ElasticDriver {
 public:
  Replay(ReplayOptions options, std::vector<ElasticRecord> records)
      : o_(std::move(options)), records_(std::move(records)) {}

  std::string address() const override { return {}; }
  Status write_first(const ElasticRecord&, Deadline) override { return {}; }
  void begin(protocol::ElasticOptions options) override;
  void tell(const protocol::ElasticInput& input) override {
    std::visit([this](const auto& in) { take(in); }, input);
  }
  std::optional<Order> next(Deadline by) override;
  void unread(Order order) override {
    if (!leaves_run(order)) orders_.push_front(std::move(order));
  }
  void note_progress(bool) override {}
  ElasticRecord record() const override { return present(); }
  Duration silence() const override { return {}; }

 private:
  template <class Other>
  void take(const Other&) {}
  void take(const protocol::StopAsked&);
  void take(const protocol::GroupStarted&) { go_on(); }
  void take(const protocol::PartFailed&);
  void take(const protocol::StateHashed& hashed);
  void take(const protocol::StepReduced& reduced);
  void take(const protocol::StepAgreed& agreed);
  void take(const protocol::UpdateApplied&);

  const ElasticRecord& present() const { return records_[at_]; }
  bool is_member() const { return present().rank_of(o_.me).has_value(); }
  /// The group of others: a process that is no member any more leaves its run.
  bool leaves_run(const Order& order) const {
    const auto* start = std::get_if<protocol::StartGroup>(&order);
    return start != nullptr && !start->record.rank_of(o_.me);
  }
  std::uint64_t last_step() const;
  void enter();
  void go_on();
  void finish_epoch();
  bool is_over(Deadline by);
  void end(bool is_failure, std::string why);

  ReplayOptions o_;
  std::vector<ElasticRecord> records_;
  protocol::ElasticOptions member_;
  std::size_t at_ = 0;  // the present record
  std::uint64_t step_ = 0;
  bool has_group_ = false;
  bool awaits_end_ = false;  // of the present epoch, for all of its members
  bool stops_ = false;
  std::uint64_t state_hash_ = 0;  // after step_; 0: not computed
  std::deque<Order> orders_;
};

// Records that were followed by another one before a step was done changed nothing.
void Replay::begin(protocol::ElasticOptions options) {
  member_ = std::move(options);
  std::vector<ElasticRecord> done;
  for (ElasticRecord& record : records_) {
    if (record.base_step >= member_.last_step) break;
    if (done.size() > 1 && done.back().base_step == record.base_step) done.pop_back();
    done.push_back(std::move(record));
  }
  records_ = std::move(done);
  if (records_.empty() || present().base_step != member_.initial_step) {
    records_ = {ElasticRecord{}};
    return end(true, fmt::format("the log of members does not begin after step {}, as this run",
                                 member_.initial_step));
  }
  step_ = present().base_step;
  enter();
}

/// Of the present epoch.
std::uint64_t Replay::last_step() const {
  return at_ + 1 < records_.size() ? records_[at_ + 1].base_step : member_.last_step;
}

void Replay::enter() {
  has_group_ = false;
  awaits_end_ = !is_member();
  if (awaits_end_) return;
  step_ = present().base_step;
  state_hash_ = 0;
  if (at_ > 0 && present().state_hash != 0 && present().is_donor(o_.me)) {
    orders_.emplace_back(protocol::HashState{.epoch = present().epoch, .step = step_});
  } else {
    orders_.emplace_back(protocol::StartGroup{present()});
  }
}

void Replay::go_on() {
  has_group_ = true;
  const Healing& healing = member_.healing;
  if (step_ >= last_step()) return finish_epoch();  // the first one, without a step
  if (Healing::is_needed(present()) && step_ == healing.last_step(present()) && state_hash_ == 0) {
    orders_.emplace_back(protocol::HashState{.epoch = present().epoch, .step = step_});
    return;
  }
  const std::uint64_t step = step_ + 1;
  const std::size_t rank = *present().rank_of(o_.me);
  protocol::RunStep order{.epoch = present().epoch,
                          .step = step,
                          .batch = protocol::batch_of(step, member_.global_batch),
                          .slices = healing.slices_of(present(), step)};
  order.part = protocol::part_of(order.batch, present(), rank, healing.is_healing(present(), step));
  order.receives = order.slices.count > 0 && !present().is_donor(o_.me);
  orders_.emplace_back(order);
}

// Members agree on it after a step.
void Replay::take(const protocol::StopAsked&) {
  stops_ = true;
  if (awaits_end_ && !is_member()) end(false, "was asked to stop");
}

void Replay::take(const protocol::PartFailed&) {
  end(true, "a rank was lost, and a replay needs all of them: start it again");
}

void Replay::take(const protocol::StateHashed& hashed) {
  if (has_group_) {
    state_hash_ = hashed.hash;
    return go_on();
  }
  if (hashed.hash == present().state_hash) {
    orders_.emplace_back(protocol::StartGroup{present()});
    return;
  }
  end(true, fmt::format("after step {} the state has other bits than in the log of members: it is "
                        "of another recipe, version of Stormo or libtorch, or kind of processor",
                        step_));
}

void Replay::take(const protocol::StepReduced& reduced) {
  orders_.emplace_back(protocol::AgreeOn{.epoch = reduced.epoch,
                                         .step = reduced.step,
                                         .gradient_hash = reduced.gradient_hash,
                                         .state_hash = std::exchange(state_hash_, 0),
                                         .stops = stops_,
                                         .changes = reduced.step == last_step()});
}

void Replay::take(const protocol::StepAgreed& agreed) {
  stops_ = agreed.stops;
  if (agreed.verdict == protocol::AgreeVerdict::kCommit) {
    orders_.emplace_back(protocol::ApplyUpdate{.epoch = agreed.epoch, .step = agreed.step});
    return;
  }
  end(true, fmt::format(
                "step {}: the members' {} differ", agreed.step,
                agreed.verdict == protocol::AgreeVerdict::kStatesDiffer ? "states" : "gradients"));
}

void Replay::take(const protocol::UpdateApplied&) {
  ++step_;
  step_ < last_step() && !stops_ ? go_on() : finish_epoch();
}

void Replay::finish_epoch() {
  awaits_end_ = true;
  const Status noted = o_.store->set(fmt::format("replay/{}/{}", at_, o_.me),
                                     stops_ ? kStops : kGoesOn, Deadline::after(kNoteTime));
  if (!noted.ok()) end(true, noted.message());
}

/// Others may wait for this one in the Store.
void Replay::end(bool is_failure, std::string why) {
  if (is_failure) {
    (void)o_.store->set_if_absent(kFailed, o_.me + ": " + why, Deadline::after(kNoteTime));
  }
  orders_.emplace_back(protocol::EndMember{.is_failure = is_failure, .why = std::move(why)});
}

/// Whether all members of the present epoch have done its last step.
bool Replay::is_over(Deadline by) {
  for (const protocol::ElasticEntry& member : present().members) {
    const Result<std::string> note =
        o_.store->get(fmt::format("replay/{}/{}", at_, member.id.identity), by);
    if (!note.ok()) {
      const Result<std::string> failure = o_.store->get(kFailed, Deadline::after(kGlance));
      if (failure.ok()) end(true, *failure);
      if (!failure.ok() && !by.expired()) end(true, note.status().message());
      return false;
    }
    stops_ = stops_ || *note == kStops;
  }
  return true;
}

std::optional<Replay::Order> Replay::next(Deadline by) {
  while (orders_.empty() && awaits_end_ && is_over(by)) {
    awaits_end_ = false;
    if (stops_ || at_ + 1 == records_.size()) {
      end(false, "done");
      break;
    }
    const bool has_run = is_member();
    if (has_run) o_.abort(present().epoch);
    ++at_;
    enter();
    if (has_run && !is_member()) orders_.emplace_back(protocol::StartGroup{present()});
  }
  if (orders_.empty()) return {};
  Order order = std::move(orders_.front());
  orders_.pop_front();
  return order;
}

}  // namespace

bool is_membership_log(std::string_view register_address) {
  return register_address.starts_with(kLog);
}

Result<std::vector<ElasticRecord>> open_membership_log(std::string_view register_address,
                                                       int ranks) {
  const std::string path(register_address.substr(kLog.size()));
  STORMO_ASSIGN_OR_RETURN(std::vector<ElasticRecord> records, read_membership(path));
  const std::size_t first = records.front().members.size();
  if (std::cmp_equal(first, ranks)) return records;
  return invalid_argument(fmt::format(
      "the run in '{}' began with {} ranks, and this one has {}; start as many, on as many hosts",
      path, first, ranks));
}

Result<std::unique_ptr<membership::ElasticDriver>> replay_membership(ReplayOptions options) {
  STORMO_ASSIGN_OR_RETURN(
      std::vector<ElasticRecord> records,
      open_membership_log(options.register_address, static_cast<int>(options.all.size())));
  const ElasticRecord& first = records.front();
  std::vector<std::string> missing;
  const auto look_for = [&](const std::string& name) {
    if (!first.rank_of(name)) missing.push_back(name);
  };
  look_for(options.me);
  for (const ElasticRecord& record : records) {
    for (const protocol::ElasticEntry& m : record.members) look_for(m.id.identity);
  }
  if (missing.empty() && *first.rank_of(options.me) != static_cast<std::size_t>(options.rank)) {
    missing.push_back(options.me + " as rank " + std::to_string(options.rank));
  }
  if (!missing.empty()) {
    return invalid_argument(fmt::format(
        "{} is no rank that began the run in the log of members; a replay has the ranks that began "
        "it, on the same hosts in the same order",
        missing.front()));
  }
  for (ElasticRecord& record : records) {
    for (protocol::ElasticEntry& m : record.members) {
      const auto there = std::ranges::find(options.all, m.id.identity,
                                           [](const auto& entry) { return entry.id.identity; });
      if (there != options.all.end()) m.address = there->address;
    }
  }
  return std::unique_ptr<membership::ElasticDriver>(
      std::make_unique<Replay>(std::move(options), std::move(records)));
}

}  // namespace stormo::train
