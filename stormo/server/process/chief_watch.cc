#include <stormo/server/process/chief_watch.h>

#include <fmt/format.h>

#include <utility>

namespace stormo::server {

/// Whether this server executes the requests for part 0.
bool ChiefWatch::elects() {
  Replica* const first = options_.parts->part(0);
  return first != nullptr && first->role() != Replica::Role::kBackup;
}

Status ChiefWatch::check(const WorkerHello& hello) const {
  const bool is_new =
      hello.worker == worker() && member() != nullptr && member()->token != hello.token;
  if (!is_open_ || !is_new) return {};
  return Status(
      Code::kExhausted,
      fmt::format("worker {} keeps the run as another process; when that is lost, another "
                  "worker has to take its place first",
                  hello.worker));
}

bool ChiefWatch::hear(int worker, const ServerNews& news) {
  look_at_backup();
  const std::int32_t chief = news.chief.worker;
  const bool is_possible = chief >= 0 && chief < options_.parts->workers();
  if (is_possible && is_open_ && terms_.learn(news.chief)) begin_term();
  return terms_.obeys(worker, news.chief);
}

/// What the primary has told this server, or the answer of this server's backup.
void ChiefWatch::look_at_backup() {
  Replica* const first = options_.parts->part(0);
  if (first == nullptr) return;
  if (terms_.learn(first->told_chief())) begin_term();
  if (!terms_.is_proposing()) return;
  const std::optional<Status> told = first->election_outcome();
  if (!told) return;
  if (told->ok()) {
    terms_.confirm();
    begin_term();
  } else if (const ServerMembers::Member* const lost = member()) {
    fail(lost->lost_why,
         "; the server that has to know who takes its place is lost, too: " + told->message());
  }
}

void ChiefWatch::watch(TimePoint now) {
  const ServerMembers::Member* const chief = member();
  if (is_over_ || chief == nullptr || !failure_.ok()) return;
  if (is_open_) look_at_backup();
  if (terms_.is_proposing() || chief != member()) return;
  if (chief->stage != ServerMembers::Member::Stage::kLost) {
    lost_at_.reset();
    return;
  }
  if (!is_open_) {
    return fail(chief->lost_why,
                options_.parts->has_backups()
                    ? "; others can take its place once the run is open"
                    : "; with strategy.server_backups=true another worker would take its place");
  }
  if (!options_.members->first_here()) {
    return fail(chief->lost_why, "; no worker is left to take its place");
  }
  if (elects()) return elect(*chief);
  if (!lost_at_) lost_at_ = now;
  // the server that elects may notice it later, by silence
  if (now - *lost_at_ < 2 * chief->timeout) return;
  fail(chief->lost_why, "; the server that names another one does not answer");
}

// A chief that goes on must not write any more when another one begins.
void ChiefWatch::elect(const ServerMembers::Member& lost) {
  options_.on_event(
      fmt::format("worker {}, which keeps the run, was lost: {}; worker {} takes its "
                  "place",
                  worker(), lost.lost_why, *options_.members->first_here()));
  options_.members->end_process(worker());
  const protocol::ChiefTerm next = terms_.propose(*options_.members->first_here());
  options_.parts->part(0)->begin_election(next);
  look_at_backup();
}

/// Of which this server has just learned.
void ChiefWatch::begin_term() {
  options_.members->end_process(std::exchange(before_, worker()));
  lost_at_.reset();
}

void ChiefWatch::fail(const std::string& why, const std::string& more) {
  failure_ = Status(Code::kPeerLost, fmt::format("worker {}, which keeps the run, was lost: {}{}",
                                                 worker(), why, more));
}

}  // namespace stormo::server
