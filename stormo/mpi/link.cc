#include <stormo/mpi/link.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <stormo/mpi/pacing.h>

namespace stormo::mpi {

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
  if (abandoned_) buffers_.release();  // NOLINT: MPI may still use them
  library_.group_ends();
}

Status Link::wait(std::string_view name, std::span<MPI_Request> requests, Deadline by) {
  Status outcome = poll(name, requests, by);
  if (!outcome.ok()) abandon();
  return outcome;
}

void Link::abandon() {
  if (!abandoned_.exchange(true)) library_.abandon();
}

// After step k a rank knows the maximum of 2^k ranks. Receives, unlike MPI's collectives, can be
// cancelled, and it is here that ranks wait for each other.
Status Link::maximum(Words& words, Deadline by) {
  std::size_t round = 0;
  for (int step = 1; step < size_; step *= 2, ++round) {
    Words& mine = buffers_->sent[round] = words;
    Words& theirs = buffers_->received[round];
    MPI_Request sent = MPI_REQUEST_NULL, received = MPI_REQUEST_NULL;
    STORMO_RETURN_IF_ERROR(library_.call("MPI_Isend", [&] {
      return MPI_Isend(mine.data(), sizeof mine, MPI_BYTE, (rank_ + step) % size_, kMeetTag,
                       messages_, &sent);
    }));
    STORMO_RETURN_IF_ERROR(library_.call("MPI_Irecv", [&] {
      return MPI_Irecv(theirs.data(), sizeof theirs, MPI_BYTE, (rank_ - step + size_) % size_,
                       kMeetTag, messages_, &received);
    }));
    if (Status outcome = poll("MPI_Irecv", {&received, 1}, by); !outcome.ok()) {
      cancel({&received, 1});
      if (!settle("MPI_Irecv", {&received, 1})) abandon();
      return outcome;
    }
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

/// For a short time. Whether they are complete then.
bool Link::settle(std::string_view name, std::span<MPI_Request> requests) {
  const Deadline by = Deadline::after(kPatience);
  Pacing pacing(policy_);
  for (;;) {
    bool done = false;
    if (!test(name, requests, done).ok()) return false;
    if (done || by.expired()) return done;
    pacing.pause();
  }
}

void Link::cancel(std::span<MPI_Request> receives) {
  const Status cancelled = library_.call("MPI_Cancel", [&] {
    for (MPI_Request& receive : receives) {
      const int code = receive == MPI_REQUEST_NULL ? MPI_SUCCESS : MPI_Cancel(&receive);
      if (code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  });
  static_cast<void>(cancelled);  // the group has failed already
}

void Link::fail(Status cause) {
  if (world_.health_.fail(cause)) world_.announce(cause);
}

void Link::announce(const Status& cause) {
  std::array<char, sizeof(Buffers::failure)>& text = buffers_->failure;
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
  if (!said.ok() || !settle("MPI_Isend", sent)) abandon();
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

Result<std::unique_ptr<Link>> Link::of_members(std::span<const Rank> members) {
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  STORMO_RETURN_IF_ERROR(library_.call("MPI_Comm_create_group", [&] {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    // not of messages_: Open MPI's own messages with this tag would pass for ours
    int code = MPI_Comm_group(collectives_, &all);
    if (code != MPI_SUCCESS) return code;
    code = MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some);
    if (code == MPI_SUCCESS) code = MPI_Comm_create_group(collectives_, some, 0, &collectives);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(collectives, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(collectives, &messages);  // with the handler
    MPI_Group_free(&all);
    if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
    return code;
  }));
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
