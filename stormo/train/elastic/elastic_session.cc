#include <stormo/train/elastic/elastic_session.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/checkpoint/exchange.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/membership/register_address.h>
#include <stormo/protocol/supervisor.h>
#include <stormo/train/elastic/training_state.h>
#include <stormo/transport/net/socket.h>

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

/// As what a group meets that is made before its epoch: no epoch has this number.
Epoch meeting_of(const protocol::ElasticRecord& wish) {
  constexpr Epoch kBefore = Epoch{1} << 31;
  return kBefore | wish.epoch << 8 | wish.group;
}

/// For one question to the Store.
constexpr Duration kStoreTime = std::chrono::seconds(1);

}  // namespace

std::string ElasticPlace::identity() const {
  return fmt::format("{}/{}", place.host, place.local_rank);
}

Result<std::unique_ptr<comm::EpochWorld>> first_world(const ElasticPlace& place) {
  transport::Rendezvous r = place.place;
  r.epoch = kFirstEpoch;
  if (place.joins_later()) {
    r = {};
    static_cast<transport::JobSettings&>(r) = place.place;
  }
  STORMO_ASSIGN_OR_RETURN(auto group, comm::join(r));
  return std::make_unique<comm::EpochWorld>(std::move(group),
                                            place.joins_later() ? 0 : kFirstEpoch);
}

ElasticSession::ElasticSession(comm::EpochWorld& world, ElasticPlace place, Outside outside)
    : world_(world), place_(std::move(place)), outside_(std::move(outside)) {}

ElasticSession::~ElasticSession() {
  if (next_) next_->end();
}

Status ElasticSession::open(const Terms& terms) {
  const transport::Rendezvous& place = place_.place;
  STORMO_ASSIGN_OR_RETURN(
      store_, transport::StoreClient::connect({.address = place.store, .secret = place.secret},
                                              Deadline::after(place.join_timeout)));
  const protocol::MemberId me{place_.identity(), place_.incarnation};
  membership::ElasticDriver::Options options{
      .job = place_.job, .me = me, .ports = place.ports, .secret = place.secret};
  options.listen.host = "127.0.0.1";
  if (place.cross_size > 1) {
    STORMO_ASSIGN_OR_RETURN(options.listen.host, transport::interface_address(place.interface));
  }
  STORMO_ASSIGN_OR_RETURN(
      options.membership,
      membership::open_register(place_.register_address,
                                {.job = place_.job, .secret = place.secret, .password = {}}));
  options.abort = [this](Epoch epoch) { abort(epoch); };
  options.say = outside_.say;
  make_next_group();
  options.prepare = [this](const protocol::ElasticRecord& wish) { next_->prepare(wish); };
  STORMO_ASSIGN_OR_RETURN(driver_, membership::ElasticDriver::open(std::move(options)));
  if (!joins_later()) {
    protocol::ElasticRecord first{
        .epoch = kFirstEpoch, .base_step = terms.step, .plan_hash = terms.plan_hash};
    STORMO_ASSIGN_OR_RETURN(
        const std::vector<std::string> addresses,
        checkpoint::gather_texts(world_, place_.identity() + "\n" + driver_->address()));
    for (const std::string& text : addresses) {
      const std::size_t end = text.find('\n');
      first.members.push_back({.id = {text.substr(0, end), 1}, .address = text.substr(end + 1)});
      first.donors.push_back(text.substr(0, end));
    }
    Result<std::string> written = std::string();
    if (world_.rank() == 0) {
      const Status done = driver_->write_first(first, Deadline::after(kFirstRecordTime));
      if (!done.ok()) written = done.within("the register of members");
    }
    STORMO_RETURN_IF_ERROR(checkpoint::broadcast_outcome(world_, written).status());
  }
  protocol::ElasticOptions member{.me = me,
                                  .plan_hash = terms.plan_hash,
                                  .has_state = !joins_later(),
                                  .initial_step = terms.step,
                                  .last_step = terms.last_step,
                                  .global_batch = terms.global_batch,
                                  .min_ranks = place_.min_ranks,
                                  .healing = terms.healing};
  healing_ = terms.healing;
  member.watch.silence = place_.silence;
  // some beats may be late
  member.watch.beat = std::min(member.watch.beat, place_.silence / kBeatsInSilence);
  if (place.stall_timeout > Duration::zero()) member.watch.stuck = place.stall_timeout;
  driver_->begin(std::move(member));
  return {};
}

void ElasticSession::make_next_group() {
  next_ = std::make_unique<NextGroup>(NextGroup::Calls{
      .join =
          [this](protocol::ElasticRecord wish) {
            wish.epoch = meeting_of(wish);
            return join(wish);
          },
      .abort =
          [this](const protocol::ElasticRecord& wish) {
            end_meeting(meeting_of(wish), Status(Code::kCancelled, "the group is not needed"));
          },
      .ready =
          [this](const protocol::ElasticRecord& wish) {
            tell(protocol::GroupReady{.epoch = wish.epoch, .group = wish.group});
          }});
}

Result<std::unique_ptr<comm::Communicator>> ElasticSession::group_of(
    const protocol::ElasticRecord& record) {
  auto ready = next_->take(record);
  if (ready) return ready;
  if (record.group != 0) {
    return Status(Code::kCancelled, "the group that was made before the epoch is not there");
  }
  return join(record);
}

Rank ElasticSession::rank_of(std::string_view identity) const {
  return static_cast<Rank>(*record_.rank_of(identity));
}

// Members of a host are neighbours in a record.
Result<std::unique_ptr<comm::Communicator>> ElasticSession::join(
    const protocol::ElasticRecord& record) {
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
  if (r.size == 1) r.store = {};
  return comm::join(r);
}

// Whoever waits for others in a group that is being made learns it from the Store.
void ElasticSession::end_meeting(Epoch epoch, const Status& cause) {
  const std::string key = fmt::format("epoch {}/{}", epoch, protocol::kFailureKey);
  (void)store_->set_if_absent(key, comm::encode_failure(cause), Deadline::after(kStoreTime));
}

void ElasticSession::abort(Epoch epoch) {
  const Status cause(Code::kCancelled, fmt::format("epoch {} is over: a member was lost", epoch));
  aborted_ = epoch;
  end_meeting(epoch, cause);
  world_.fail_epoch(epoch, cause);
}

/// A process without state is of no use alone: members answer whoever asks to be let in.
Result<ElasticSession::Order> ElasticSession::wait_for_order() {
  for (;;) {
    std::optional<Order> order = driver_->next(Deadline::after(kLook));
    if (order) return std::move(*order);
    if (outside_.is_asked_to_stop()) tell(protocol::StopAsked{});
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
      auto group = group_of(start->record);
      if (group.ok()) {
        forget_former_group();
        former_ = world_.replace(std::move(*group), epoch);
        if (aborted_ == epoch) abort(epoch);  // before it was the world's
        break;
      }
      tell(protocol::PartFailed{.epoch = epoch});
    } else if (const auto* hash = std::get_if<protocol::HashState>(&order)) {
      if (!kept.optimizer)
        return Status(Code::kException, "a state is to be hashed before it is there");
      tell(protocol::StateHashed{.epoch = hash->epoch,
                                 .hash = TrainingState(*kept.optimizer).hash()});
    } else if (const auto* end = std::get_if<protocol::EndMember>(&order)) {
      return Status(end->is_failure ? Code::kPeerLost : Code::kCancelled, end->why);
    } else {
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

void ElasticSession::started() { tell(protocol::GroupStarted{.epoch = record_.epoch}); }

std::uint64_t hash_of(const std::vector<comm::Fact>& facts) {
  std::string text;
  for (const comm::Fact& f : facts) text += f.field + "\n" + f.value + "\n";
  return fnv1a(text);
}

}  // namespace stormo::train
