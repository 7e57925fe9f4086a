#include <stormo/membership/quorum_register.h>

#include <fmt/format.h>
#include <poll.h>
#include <stormo/membership/acceptor/register_wire.h>
#include <stormo/membership/random_id.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace stormo::membership {
namespace {

static_assert(kMaxRecordBytes <= protocol::kMaxValueBytes && kMaxNameBytes <= kMaxJobBytes);

constexpr int kLongestWaitMs = 1000;
/// How long a proposer waits at most before it disturbs another one again: about the time of a
/// change, which waits for disks, and longer each time.
constexpr Duration kFirstPause = std::chrono::milliseconds(8);
constexpr int kMaxDoublings = 6;
constexpr Duration kConnecting = std::chrono::milliseconds(200);

Result<EpochRecord> record_of(const protocol::RegisterValue& value) {
  if (value.version == 0) return EpochRecord{};
  STORMO_ASSIGN_OR_RETURN(EpochRecord record, decode_record(value.bytes));
  if (record.epoch == value.version) return record;
  return Status(Code::kCorrupt, fmt::format("the register has the record of epoch {} as version {}",
                                            record.epoch, value.version));
}

}  // namespace

QuorumRegister::QuorumRegister(Options options) : QuorumRegister(std::move(options), random_id()) {}

QuorumRegister::QuorumRegister(Options options, std::uint64_t id)
    : proposer_(id, static_cast<int>(options.acceptors.size())), chance_(id, "register") {
  const int count = static_cast<int>(options.acceptors.size());
  for (int i = 0; i < count; ++i) {
    links_.emplace_back(
        AcceptorLink::Options{.address = std::move(options.acceptors[static_cast<std::size_t>(i)]),
                              .index = i,
                              .count = count,
                              .secret = options.secret});
  }
}

Result<EpochRecord> QuorumRegister::read(Deadline by) {
  proposer_.read();
  STORMO_ASSIGN_OR_RETURN(const protocol::RegisterOutcome outcome, run(by));
  if (!std::exchange(has_read_, true)) connect_all();
  return record_of(outcome.value);
}

/// A majority has answered: the others, too, shall know that somebody uses the register.
void QuorumRegister::connect_all() {
  const Deadline by = Deadline::after(kConnecting);
  while (!by.expired() && !std::ranges::all_of(links_, &AcceptorLink::is_connected)) {
    wait(by.when());
    for (AcceptorLink& link : links_) {
      link.step(std::chrono::steady_clock::now(), nullptr);
      static_cast<void>(link.take());  // late answers
    }
  }
}

Result<Register::Swap> QuorumRegister::compare_and_swap(const EpochRecord& next, Deadline by) {
  STORMO_RETURN_IF_ERROR(check(next));
  proposer_.change(next.epoch - 1, encode_record(next));
  STORMO_ASSIGN_OR_RETURN(const protocol::RegisterOutcome outcome, run(by));
  if (outcome.kind == protocol::RegisterOutcome::Kind::kUnknown) {
    return Status(Code::kCancelled,
                  fmt::format("the register has gone on to epoch {}, and does not tell whether "
                              "epoch {} was this record",
                              outcome.value.version, next.epoch));
  }
  STORMO_ASSIGN_OR_RETURN(EpochRecord present, record_of(outcome.value));
  return Swap{.done = outcome.kind == protocol::RegisterOutcome::Kind::kChanged,
              .present = std::move(present)};
}

Result<protocol::RegisterOutcome> QuorumRegister::run(Deadline by) {
  restarts_ = 0;
  restart_at_.reset();
  while (!proposer_.outcome()) {
    if (by.expired()) return too_late();
    const TimePoint now = std::chrono::steady_clock::now();
    if (!exchange(now) && !restart_when_due(now)) wait(by.when());
  }
  return *proposer_.outcome();
}

/// Whether it has begun again.
bool QuorumRegister::restart_when_due(TimePoint now) {
  if (!proposer_.is_contested()) {
    restart_at_.reset();
    return false;
  }
  if (!restart_at_) {
    const auto longest = static_cast<std::uint64_t>(kFirstPause.count())
                         << std::min(restarts_, kMaxDoublings);
    restart_at_ = now + Duration(static_cast<std::int64_t>(chance_.below(longest)));
  }
  if (now < *restart_at_) return false;
  ++restarts_;
  restart_at_.reset();
  proposer_.restart();
  return true;
}

/// Sends and receives what it can now. Whether the proposer has something else to send then.
bool QuorumRegister::exchange(TimePoint now) {
  bool is_new = false;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const int acceptor = static_cast<int>(i);
    links_[i].step(now, proposer_.awaits(acceptor) ? &proposer_.request() : nullptr);
    for (const auto& reply : links_[i].take()) {
      is_new = proposer_.receive(acceptor, reply) || is_new;
    }
  }
  return is_new;
}

void QuorumRegister::wait(TimePoint until) const {
  std::vector<pollfd> fds;
  for (const AcceptorLink& link : links_) {
    fds.push_back({link.fd(), link.poll_events(), 0});
    until = std::min(until, link.wake_at());
  }
  if (restart_at_) until = std::min(until, *restart_at_);
  (void)::poll(fds.data(), fds.size(),
               transport::poll_timeout(std::chrono::steady_clock::now(), until, kLongestWaitMs));
}

Status QuorumRegister::too_late() const {
  std::vector<std::string> states;
  for (const AcceptorLink& link : links_) states.push_back(link.state_text());
  const auto reached = std::ranges::count_if(links_, &AcceptorLink::is_connected);
  std::string why = fmt::format(
      "the register has not answered in time: {} of {} acceptors are reached, {} are needed ({})",
      reached, links_.size(), proposer_.majority(), fmt::join(states, "; "));
  if (proposer_.has_proposed()) why += "; the change may take place all the same: read again";
  return Status(Code::kDeadlineExceeded, std::move(why));
}

}  // namespace stormo::membership
