#include <stormo/server/worker/server_liveness.h>

#include <fmt/format.h>

#include <utility>

#include <stormo/server/link/server_link.h>

namespace stormo::server {

ServerLiveness::ServerLiveness(std::vector<transport::HostPort> servers, int worker)
    : servers_(std::move(servers)),
      worker_(worker),
      heard_(servers_.size()),
      verdicts_(static_cast<int>(servers_.size())) {
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    health_.push_back(std::make_shared<transport::Health>());
  }
}

void ServerLiveness::lose(std::int32_t server, const std::string& why) {
  if (server < 0 || static_cast<std::size_t>(server) >= health_.size()) return;
  const auto number = static_cast<std::size_t>(server);
  (void)health_[number]->fail(ServerLink::lost(servers_[number], why));
}

void ServerLiveness::learn(const protocol::ChiefTerm& chief) {
  const std::lock_guard lock(mutex_);
  take_term(chief);
}

void ServerLiveness::open() {
  const std::lock_guard lock(mutex_);
  has_led_ = true;
}

bool ServerLiveness::is_chief() const {
  const std::lock_guard lock(mutex_);
  return decides() && has_heard_all();
}

bool ServerLiveness::is_over() const {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

/// A chief that others have replaced must not go on, as a worker either: it may be about to save.
void ServerLiveness::take_term(const protocol::ChiefTerm& chief) {
  if (chief.number <= chief_.number) return;
  chief_ = chief;
  heard_.assign(heard_.size(), false);
  if (decides()) has_led_ = true;
  if (!has_led_ || decides()) return;
  for (const auto& health : health_) {
    (void)health->fail(Status(
        Code::kPeerLost,
        fmt::format("worker {} keeps the run now: this worker kept it, but was silent or made no "
                    "progress for too long; look at its host and the network",
                    chief.worker)));
  }
}

/// Whether the chief knows what chiefs before it have told any server that is left.
bool ServerLiveness::has_heard_all() const {
  for (std::size_t s = 0; s < heard_.size(); ++s) {
    if (chief_.number > 0 && !heard_[s] && !health_[s]->failed()) return false;
  }
  return true;
}

ServerNews ServerLiveness::beat() {
  const std::lock_guard lock(mutex_);
  if (!decides()) return {.chief = chief_};
  for (std::size_t s = 0; s < health_.size(); ++s) {
    if (!is_resting_ && health_[s]->failed()) verdicts_.lose(static_cast<int>(s));
  }
  return {.chief = chief_, .lost = {verdicts_.lost().begin(), verdicts_.lost().end()}};
}

void ServerLiveness::take(std::size_t server, std::string_view answer) {
  const Result<ServerNews> news = decode<ServerNews>(answer);
  if (!news.ok()) return;
  const std::lock_guard lock(mutex_);
  take_term(news->chief);
  is_over_ = is_over_ || news->is_over;
  if (!is_resting_) {
    for (const std::int32_t lost : news->lost) lose(lost, "the chief says so");
  }
  if (!decides()) return;
  heard_[server] = news->chief == chief_;
  if (is_resting_ || !has_heard_all()) return;
  for (const std::int32_t about : news->complaints) {
    if (verdicts_.complain(static_cast<int>(server), about)) {
      lose(about, "another server cannot reach it");
    }
  }
}

void ServerLiveness::rest() {
  const std::lock_guard lock(mutex_);
  is_resting_ = true;
}

}  // namespace stormo::server
