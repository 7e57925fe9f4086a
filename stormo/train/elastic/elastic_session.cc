#include <stormo/train/elastic/elastic_session.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <variant>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/checkpoint/exchange.h>
#include <stormo/membership/member_address.h>
#include <stormo/membership/register_address.h>
#include <stormo/train/elastic/membership_replay.h>
#include <stormo/train/elastic/training_state.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/store/store_address.h>

namespace stormo::train {
namespace {

constexpr Epoch kFirstEpoch = 1;
/// For the first record; later ones are tried again.
constexpr Duration kFirstRecordTime = std::chrono::seconds(10);
/// Members that have agreed on an epoch live, or are lost soon.
constexpr Duration kJoinTime = std::chrono::seconds(10);

/// Without a word of any member, for a process that has never been one.
constexpr Duration kAlone = std::chrono::seconds(10);
constexpr int kBeatsInSilence = 8;
/// How often a waiting process looks for signals.
constexpr Duration kLook = std::chrono::milliseconds(100);

constexpr Duration kGoodbye = std::chrono::seconds(1);

/// A rank that is always the one in the minority has ended by itself before.
constexpr int kMostDisagreements = static_cast<int>(protocol::FaultyRanks::kMost) + 1;

/// Exit status of a process that another one may replace.
constexpr int kLost = 1;

/// Of the rank that serves a group's Store: shorter silences are the members' to judge.
constexpr Duration kLeastSilence = std::chrono::seconds(1);

/// Of this host, as other ranks reach it: that of the interface, or the one that reaches the
/// launcher, whether that lives or not.
Result<std::string> own_address(const transport::Rendezvous& r) {
  if (r.cross_size == 1) return std::string("127.0.0.1");
  if (r.interface.empty()) return transport::source_address_to(r.store);
  return transport::interface_address(r.interface);
}

/// `own`: the Store of this process.
Result<transport::StoreAddress> store_of_rank_0(transport::StoreClient& launcher, Rank rank,
                                                const transport::StoreAddress& own, Deadline by) {
  constexpr std::string_view kKey = "store of rank 0";
  if (rank == 0) STORMO_RETURN_IF_ERROR(launcher.set(kKey, own.text, by));
  Result<std::string> found = launcher.get(kKey, by);
  if (found.ok()) return transport::StoreAddress{*std::move(found)};
  return found.status().within("rank 0 has not begun; did it start?");
}

/// Of all ranks, on rank 0. `own`: identity and address of this one. A collective.
Result<protocol::ElasticRecord> first_record(comm::Communicator& world,
                                             const ElasticSession::Terms& terms,
                                             const std::string& own) {
  protocol::ElasticRecord first{
      .epoch = kFirstEpoch, .base_step = terms.step, .plan_hash = terms.plan_hash};
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> all, checkpoint::gather_texts(world, own));
  for (const std::string& text : all) {
    const std::size_t end = text.find('\n');
    const std::size_t rank = first.members.size();
    first.members.push_back({.id = {text.substr(0, end), 1}, .address = text.substr(end + 1)});
    if (!terms.parts.empty()) first.members.back().part = terms.parts[rank];
    first.donors.push_back(text.substr(0, end));
  }
  return first;
}

}  // namespace

std::string ElasticPlace::identity() const {
  return fmt::format("{}/{}", place.host, place.local_rank);
}

// The ranks that the launcher has started first learn from its Store where that of rank 0 is.
// Nobody else needs the launcher's.
Result<std::unique_ptr<comm::EpochWorld>> first_world(ElasticPlace& place) {
  const transport::Rendezvous& all = place.place;
  STORMO_ASSIGN_OR_RETURN(place.address, own_address(all));
  comm::EpochWorld::Options options{.settings = all,
                                    .secret = all.secret,
                                    .local_size = all.local_size,
                                    .silence = std::max(place.silence, kLeastSilence)};
  if (all.cross_size > 1) {
    options.listen = "tcp:" + transport::to_string(transport::HostPort{place.address, 0});
  }
  STORMO_ASSIGN_OR_RETURN(auto world, comm::EpochWorld::open(std::move(options)));
  if (place.joins_later()) return world;
  const Deadline by = Deadline::after(all.join_timeout);
  STORMO_ASSIGN_OR_RETURN(
      const auto launcher,
      transport::StoreClient::connect({.address = all.store, .secret = all.secret}, by));
  transport::Rendezvous r = all;
  r.epoch = kFirstEpoch;
  r.store = {};
  if (r.size > 1) {
    STORMO_ASSIGN_OR_RETURN(r.store, store_of_rank_0(*launcher, r.rank, world->store(), by));
  }
  static_cast<void>(launcher->goodbye(Deadline::after(kGoodbye)));
  STORMO_RETURN_IF_ERROR(world->enter(r));
  return world;
}

ElasticSession::ElasticSession(comm::EpochWorld& world, ElasticPlace place, Outside outside)
    : world_(world), place_(std::move(place)), outside_(std::move(outside)) {}

ElasticSession::~ElasticSession() {
  if (next_) next_->end();
}

void ElasticSession::end_process(const std::string& why) const {
  say(why);
  std::_Exit(kLost);
}

bool ElasticSession::replays() const { return is_membership_log(place_.register_address); }

std::optional<std::vector<int>> ElasticSession::first_ranks_per_host() const {
  const transport::Rendezvous& r = place_.place;
  if (r.size != r.cross_size * r.local_size) return {};
  return std::vector<int>(static_cast<std::size_t>(r.cross_size), r.local_size);
}

Status ElasticSession::open(const Terms& terms) {
  const transport::Rendezvous& place = place_.place;
  const protocol::MemberId me{place_.identity(), place_.incarnation};
  protocol::ElasticOptions member{.me = me,
                                  .plan_hash = terms.plan_hash,
                                  .has_state = !joins_later(),
                                  .initial_step = terms.step,
                                  .last_step = terms.last_step,
                                  .global_batch = terms.global_batch,
                                  .min_ranks = place_.min_ranks,
                                  .healing = terms.healing,
                                  .max_disagreements = kMostDisagreements};
  if (!terms.parts.empty()) member.part = terms.parts.at(static_cast<std::size_t>(place.rank));
  healing_ = terms.healing;
  if (kept.replica && !joins_later()) {
    const protocol::AverageId none{.epoch = 0, .step = terms.step};
    kept.replica->averages = {.last = none, .before = none};
  }
  make_next_group();
  if (replays()) return open_replay(std::move(member));
  membership::ElasticDriver::Options options{.job = place_.job,
                                             .me = me,
                                             .ports = place.ports,
                                             .secret = place.secret,
                                             .store = world_.store().text};
  options.listen.host = place_.address;
  STORMO_ASSIGN_OR_RETURN(
      options.membership,
      membership::open_register(place_.register_address,
                                {.job = place_.job, .secret = place.secret, .password = {}}));
  options.abort = [this](Epoch epoch) { abort(epoch); };
  options.end_process = [] { std::_Exit(kLost); };
  options.prepare = [this](const protocol::ElasticRecord& wish) { next_->prepare(wish); };
  options.say = outside_.say;
  STORMO_ASSIGN_OR_RETURN(driver_, membership::ElasticDriver::open(std::move(options)));
  if (!joins_later()) {
    STORMO_ASSIGN_OR_RETURN(
        const protocol::ElasticRecord first,
        first_record(world_, terms, place_.identity() + "\n" + driver_->address()));
    Result<std::string> written = std::string();
    if (world_.rank() == 0) {
      const Status done = driver_->write_first(first, Deadline::after(kFirstRecordTime));
      if (!done.ok()) written = done.within("the register of members");
    }
    STORMO_RETURN_IF_ERROR(checkpoint::broadcast_outcome(world_, written).status());
  }
  member.watch.silence = place_.silence;
  // some beats may be late
  member.watch.beat = std::min(member.watch.beat, place_.silence / kBeatsInSilence);
  if (place.stall_timeout > Duration::zero()) member.watch.stuck = place.stall_timeout;
  driver_->begin(std::move(member));
  return {};
}

/// The processes of a replay meet in the launcher's Store between its epochs.
Status ElasticSession::open_replay(protocol::ElasticOptions member) {
  const transport::Rendezvous& place = place_.place;
  STORMO_ASSIGN_OR_RETURN(
      launcher_, transport::StoreClient::connect({.address = place.store, .secret = place.secret},
                                                 Deadline::after(place.join_timeout)));
  const membership::MemberAddress own{.links = {}, .store = world_.store().text};
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      checkpoint::gather_texts(world_, place_.identity() + "\n" + membership::to_text(own)));
  std::string joined = fmt::format("{}", fmt::join(texts, "\n"));
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(world_, joined));
  std::vector<protocol::ElasticEntry> all;
  std::istringstream lines(joined);
  for (std::string identity, address;
       std::getline(lines, identity) && std::getline(lines, address);) {
    all.push_back({.id = {identity, 1}, .address = address});
  }
  STORMO_ASSIGN_OR_RETURN(driver_,
                          replay_membership({.register_address = place_.register_address,
                                             .me = place_.identity(),
                                             .all = std::move(all),
                                             .rank = world_.rank(),
                                             .store = launcher_.get(),
                                             .abort = [this](Epoch epoch) { abort(epoch); }}));
  driver_->begin(std::move(member));
  return {};
}

void ElasticSession::make_next_group() {
  next_ = std::make_unique<NextGroup>(NextGroup::Calls{
      .join =
          [this](const protocol::ElasticRecord& wish, std::shared_ptr<transport::Health> health) {
            return world_.make(place_in(wish), wish.group, std::move(health));
          },
      .ready =
          [this](const protocol::ElasticRecord& wish) {
            tell(protocol::GroupReady{.epoch = wish.epoch, .group = wish.group});
          },
      .destroy = [this](NextGroup::Group group) { world_.destroy(std::move(group)); }});
}

Rank ElasticSession::rank_of(std::string_view identity) const {
  return static_cast<Rank>(*record_.rank_of(identity));
}

// Members of a host are neighbours in a record. They meet in the Store of the first one.
transport::Rendezvous ElasticSession::place_in(const protocol::ElasticRecord& record) const {
  transport::Rendezvous r = place_.place;
  const std::string me = place_.identity();
  const std::vector<protocol::ElasticEntry>& all = record.members;
  r.epoch = record.epoch;
  r.rank = static_cast<Rank>(*record.rank_of(me));
  r.size = static_cast<int>(all.size());
  r.join_timeout = std::min(r.join_timeout, kJoinTime);
  r.cross_rank = r.cross_size = r.local_rank = r.local_size = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string_view host = protocol::host_of(all[i].id.identity);
    if (i == 0 || host != protocol::host_of(all[i - 1].id.identity)) ++r.cross_size;
    if (host != protocol::host_of(me)) continue;
    if (all[i].id.identity == me) {
      r.local_rank = r.local_size;
      r.cross_rank = r.cross_size - 1;
    }
    ++r.local_size;
  }
  r.store = {membership::parse_member_address(all.front().address).store};
  if (r.size == 1) r.store = {};
  return r;
}

Status ElasticSession::enter_group(const protocol::ElasticRecord& record) {
  NextGroup::Group ready = next_->take(record);
  forget_former_group();
  if (ready.group) return world_.enter(std::move(ready), record.epoch);
  if (record.group == 0) return world_.enter(place_in(record));
  return {Code::kCancelled, "the group that was made before the epoch is not there"};
}

void ElasticSession::abort(Epoch epoch) {
  const Status cause(Code::kCancelled, fmt::format("epoch {} is over: a member was lost", epoch));
  next_->give_up(epoch);
  world_.fail_epoch(epoch, cause);
}

void ElasticSession::tell_wishes() {
  if (outside_.is_asked_to_stop()) tell(protocol::StopAsked{});
  if (outside_.is_asked_to_leave()) tell(protocol::LeaveAsked{});
}

/// A process without state is of no use alone: members answer whoever asks to be let in.
Result<ElasticSession::Order> ElasticSession::wait_for_order() {
  for (;;) {
    std::optional<Order> order = driver_->next(Deadline::after(kLook));
    if (order) return std::move(*order);
    tell_wishes();
    if (!was_member_ && driver_->silence() > kAlone) {
      return Status(Code::kPeerLost,
                    "no member of the job answers: none is left that has the state; resume from "
                    "the last checkpoint");
    }
  }
}

ElasticSession::Order ElasticSession::next() { return wait_for_order().take_or_throw(); }

Status ElasticSession::enter_first() {
  Order order = next();
  const auto* start = std::get_if<protocol::StartGroup>(&order);
  if (start != nullptr && start->record.epoch == kFirstEpoch) {
    record_ = start->record;
    was_member_ = true;
    return {};
  }
  unread(std::move(order));
  leave_epoch();
  return Status(Code::kCancelled, "a member was lost before the first step");
}

Status ElasticSession::enter() {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const Order order, wait_for_order());
    if (const auto* start = std::get_if<protocol::StartGroup>(&order)) {
      const Epoch epoch = start->record.epoch;
      record_ = start->record;
      change_ = protocol::change_between(trained_, record_, start->gone);
      if (enter_group(start->record).ok()) break;
      tell(protocol::PartFailed{.epoch = epoch});
    } else if (const auto* hash = std::get_if<protocol::HashState>(&order)) {
      if (!kept.optimizer)
        return Status(Code::kException, "a state is to be hashed before it is there");
      const std::uint64_t of_state = kept.replica ? kept.replica->averages.hash_after(hash->step)
                                                  : TrainingState(*kept.optimizer).hash();
      tell(protocol::StateHashed{.epoch = hash->epoch, .hash = of_state});
    } else if (const auto* end = std::get_if<protocol::EndMember>(&order)) {
      left_job_ = end->has_left;
      return Status(end->is_failure ? Code::kPeerLost : Code::kCancelled, end->why);
    } else if (!std::holds_alternative<protocol::PauseMember>(order)) {
      return Status(Code::kException, "an order for a group that is not there");
    }
  }
  left_ = false;
  was_member_ = true;
  return {};
}

void ElasticSession::note_failed_start(bool started) {
  if (started || left_ || !is_open() || world_.status().ok()) return;
  tell(protocol::PartFailed{.epoch = record_.epoch});
  leave_epoch();
}

void ElasticSession::started() {
  trained_ = record_;
  tell(protocol::GroupStarted{.epoch = record_.epoch});
}

std::uint64_t hash_of(const std::vector<comm::Fact>& facts) {
  std::string text;
  for (const comm::Fact& f : facts) text += f.field + "\n" + f.value + "\n";
  return fnv1a(text);
}

}  // namespace stormo::train
