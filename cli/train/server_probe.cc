#include <cli/train/server_probe.h>

#include <utility>

namespace stormo::cli {
namespace {

constexpr Duration kAskEvery = std::chrono::seconds(1);

}  // namespace

ServerProbe::ServerProbe(std::vector<transport::HostPort> servers, transport::Secret secret,
                         Duration first, Duration patience)
    : servers_(std::move(servers)),
      secret_(secret),
      patience_(patience),
      gone_at_(std::chrono::steady_clock::now() + first),
      dials_(servers_.size()) {}

std::unique_ptr<transport::Dialer> ServerProbe::dial(const transport::HostPort& server) const {
  auto addresses = transport::resolve(server);
  if (!addresses.ok() || addresses->empty()) return nullptr;
  transport::Hello hello;
  hello.purpose = transport::Purpose::kServer;
  return std::make_unique<transport::Dialer>(
      transport::Dialer::Options{std::move(*addresses), secret_, hello});
}

// A server takes a connection that says nothing, and forgets it when it ends.
bool ServerProbe::are_gone(TimePoint now, bool began) {
  if (began && !std::exchange(began_, true)) gone_at_ = now + patience_;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    if (!dials_[s] && now >= next_) dials_[s] = dial(servers_[s]);
    if (!dials_[s] || !dials_[s]->step(now)) continue;
    if (dials_[s]->take().ok()) {
      began_ = true;
      gone_at_ = now + patience_;
    }
    dials_[s].reset();
    next_ = now + kAskEvery;
  }
  return now >= gone_at_;
}

}  // namespace stormo::cli
