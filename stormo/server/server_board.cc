#include <stormo/server/server_board.h>

#include <utility>

#include <stormo/server/server_link.h>

namespace stormo::server {

ServerBoard::ServerBoard(std::vector<transport::HostPort> servers, bool is_chief)
    : servers_(std::move(servers)),
      is_chief_(is_chief),
      verdicts_(static_cast<int>(servers_.size())) {
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    health_.push_back(std::make_shared<transport::Health>());
  }
}

void ServerBoard::lose(std::int32_t server, const std::string& why) {
  if (server < 0 || static_cast<std::size_t>(server) >= health_.size()) return;
  const auto number = static_cast<std::size_t>(server);
  (void)health_[number]->fail(ServerLink::lost(servers_[number], why));
}

ServerNews ServerBoard::beat() {
  if (!is_chief_) return {};
  const std::lock_guard lock(mutex_);
  for (std::size_t s = 0; s < health_.size(); ++s) {
    if (!is_over_ && health_[s]->failed()) verdicts_.lose(static_cast<int>(s));
  }
  return {.lost = {verdicts_.lost().begin(), verdicts_.lost().end()}};
}

void ServerBoard::take(std::size_t server, std::string_view answer) {
  const Result<ServerNews> news = decode_server_news(answer);
  if (!news.ok()) return;
  const std::lock_guard lock(mutex_);
  if (!is_chief_) {
    for (const std::int32_t lost : news->lost) lose(lost, "the chief says so");
    return;
  }
  for (const std::int32_t about : news->complaints) {
    if (!is_over_ && verdicts_.complain(static_cast<int>(server), about)) {
      lose(about, "another server cannot reach it");
    }
  }
}

void ServerBoard::rest() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
}

}  // namespace stormo::server
