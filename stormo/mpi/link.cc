#include <stormo/mpi/link.h>

#include <fmt/format.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace stormo::mpi {
namespace {

constexpr Duration kFarewell = std::chrono::milliseconds(200);

/// The time between two looks at something that only looking brings forward. At first none; then
/// the core is offered to others; then it sleeps, a small part of the time waited so far, so that
/// a long wait costs neither a core nor much delay.
class Pacing {
 public:
  explicit Pacing(const transport::WaitPolicy& policy) : policy_(policy) {}

  /// Passes the time until the next look. True when there is time to look at other things too.
  bool pause() {
    if (++looks_ <= kLooks) return false;
    const TimePoint now = std::chrono::steady_clock::now();
    if (looks_ == kLooks + 1) start_ = now;
    const Duration waited = now - start_;
    if (waited < policy_.spin) return false;
    if (waited < policy_.spin + kYield) {
      ::sched_yield();
      return true;
    }
    std::this_thread::sleep_for(std::clamp(waited / kPartOfTheWait, kShortest, kLongest));
    return true;
  }

 private:
  static constexpr int kLooks = 4;
  static constexpr Duration kYield = std::chrono::microseconds(200);
  static constexpr Duration kShortest = std::chrono::microseconds(20);
  static constexpr Duration kLongest = std::chrono::milliseconds(4);
  static constexpr int kPartOfTheWait = 16;

  const transport::WaitPolicy& policy_;
  int looks_ = 0;
  TimePoint start_{};
};

}  // namespace

Link::Link(Library& library, MPI_Comm collectives, MPI_Comm messages, transport::WaitPolicy policy,
           Link* world)
    : library_(library),
      collectives_(collectives),
      messages_(messages),
      policy_(policy),
      world_(world != nullptr ? *world : *this) {
  MPI_Comm_rank(messages_, &rank_);
  MPI_Comm_size(messages_, &size_);
  library_.group_begins();
}

Link::~Link() {
  if (abandoned_) outgoing_.release();  // NOLINT: MPI may still read it
  library_.group_ends();
}

Status Link::wait(std::string_view name, std::span<MPI_Request> requests, Deadline by) {
  Status outcome = poll(name, requests, by);
  if (!outcome.ok() && !abandoned_) {
    abandoned_ = true;
    library_.abandon();
  }
  return outcome;
}

Status Link::receive(std::span<std::byte> data, Rank from, MessageTag tag, Deadline by) {
  MPI_Request request = MPI_REQUEST_NULL;
  const auto length = static_cast<int>(data.size());
  STORMO_RETURN_IF_ERROR(library_.call("MPI_Irecv", [&] {
    return MPI_Irecv(data.data(), length, MPI_BYTE, from, tag, messages_, &request);
  }));
  Status outcome = poll("MPI_Irecv", {&request, 1}, by);
  if (!outcome.ok()) cancel(request);
  return outcome;
}

// After step k a rank knows the maximum of 2^k ranks. Receives, unlike MPI's collectives, can be
// cancelled, and it is here that ranks wait for each other.
Status Link::maximum(Words& words, Deadline by) {
  std::size_t round = 0;
  for (int step = 1; step < size_; step *= 2, ++round) {
    Words& mine = outgoing_->words[round] = words;
    MPI_Request sent = MPI_REQUEST_NULL;
    STORMO_RETURN_IF_ERROR(library_.call("MPI_Isend", [&] {
      return MPI_Isend(mine.data(), sizeof mine, MPI_BYTE, (rank_ + step) % size_, kMeetTag,
                       messages_, &sent);
    }));
    Words theirs{};
    STORMO_RETURN_IF_ERROR(receive(std::as_writable_bytes(std::span(theirs)),
                                   (rank_ - step + size_) % size_, kMeetTag, by));
    STORMO_RETURN_IF_ERROR(wait("MPI_Isend", {&sent, 1}, by));
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::max(words[i], theirs[i]);
  }
  return {};
}

Status Link::poll(std::string_view name, std::span<MPI_Request> requests, Deadline by) {
  Pacing pacing(policy_);
  for (;;) {
    bool done = false;
    STORMO_RETURN_IF_ERROR(test(name, requests, done));
    if (done) return {};
    if (!pacing.pause()) continue;
    listen();
    if (health().failed()) return health().status();
    if (by.expired()) {
      return {Code::kDeadlineExceeded, fmt::format("{} was not complete in time", name)};
    }
  }
}

Status Link::test(std::string_view name, std::span<MPI_Request> requests, bool& done) {
  int flag = 0;
  Status outcome;
  if (requests.size() == 1) {
    outcome =
        library_.call(name, [&] { return MPI_Test(requests.data(), &flag, MPI_STATUS_IGNORE); });
  } else {
    std::vector<MPI_Status> statuses(requests.size());
    outcome = library_.call(name, [&] {
      const int code =
          MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, statuses.data());
      if (code != MPI_ERR_IN_STATUS) return code;
      const auto failed = std::ranges::find_if(statuses, [](const MPI_Status& s) {
        return s.MPI_ERROR != MPI_SUCCESS && s.MPI_ERROR != MPI_ERR_PENDING;
      });
      return failed == statuses.end() ? code : failed->MPI_ERROR;
    });
  }
  done = flag != 0;
  return outcome;
}

void Link::cancel(MPI_Request& receive) {
  const Status cancelled = library_.call("MPI_Cancel", [&] {
    if (receive == MPI_REQUEST_NULL) return MPI_SUCCESS;
    const int code = MPI_Cancel(&receive);
    return code == MPI_SUCCESS ? MPI_Wait(&receive, MPI_STATUS_IGNORE) : code;
  });
  static_cast<void>(cancelled);  // the group has failed already
}

void Link::fail(Status cause) {
  if (world_.health_.fail(cause)) world_.announce(cause);
}

void Link::announce(const Status& cause) {
  std::array<char, sizeof(Outgoing::failure)>& text = outgoing_->failure;
  const std::size_t length = std::min(cause.message().size(), text.size() - 1);
  text[0] = static_cast<char>(cause.code());
  std::memcpy(text.data() + 1, cause.message().data(), length);
  std::vector<MPI_Request> sent(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  const Status said = library_.call("MPI_Isend", [&] {
    for (Rank to = 0; to < size_ && !closed_; ++to) {
      if (to == rank_) continue;
      const int code = MPI_Isend(text.data(), static_cast<int>(length + 1), MPI_BYTE, to,
                                 kFailureTag, messages_, &sent[static_cast<std::size_t>(to)]);
      if (code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  });
  // short messages leave at once; nobody waits for a peer that takes none any more
  const Deadline by = Deadline::after(kFarewell);
  Pacing pacing(policy_);
  bool done = !said.ok();
  while (!done && !by.expired()) {
    if (!test("MPI_Isend", sent, done).ok()) return;
    if (!done) pacing.pause();
  }
}

void Link::listen() {
  if (health().failed()) return;
  const Status heard = library_.call("MPI_Iprobe", [&] { return world_.receive_failure(); });
  if (!heard.ok()) world_.health_.fail(heard);
}

int Link::receive_failure() {
  int waiting = 0;
  MPI_Status from;
  if (closed_) return MPI_SUCCESS;
  int code = MPI_Iprobe(MPI_ANY_SOURCE, kFailureTag, messages_, &waiting, &from);
  if (code != MPI_SUCCESS || waiting == 0) return code;
  int length = 0;
  MPI_Get_count(&from, MPI_BYTE, &length);
  std::vector<char> text(static_cast<std::size_t>(length));
  code = MPI_Recv(text.data(), length, MPI_BYTE, from.MPI_SOURCE, kFailureTag, messages_,
                  MPI_STATUS_IGNORE);
  if (code == MPI_SUCCESS && length > 0) {
    health_.fail({static_cast<Code>(text[0]), std::string(text.begin() + 1, text.end())});
  }
  return code;
}

Result<std::unique_ptr<Link>> Link::split(bool member) {
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  STORMO_RETURN_IF_ERROR(library_.call("MPI_Comm_split", [&] {
    const int color = member ? 0 : MPI_UNDEFINED;
    const int code = MPI_Comm_split(collectives_, color, rank_, &collectives);
    return code == MPI_SUCCESS ? MPI_Comm_split(collectives_, color, rank_, &messages) : code;
  }));
  if (!member) return std::unique_ptr<Link>();
  return std::make_unique<Link>(library_, collectives, messages, policy_, &world_);
}

Status Link::close() {
  return library_.call("MPI_Comm_free", [&] {
    closed_ = true;
    const int code = MPI_Comm_free(&messages_);
    return code == MPI_SUCCESS ? MPI_Comm_free(&collectives_) : code;
  });
}

}  // namespace stormo::mpi
