// A member of an elastic job that only speaks to others: it tells all that it knows how far it has
// come, 20 times a second, until SIGTERM.
//   member_worker IDENTITY INTERFACE [IDENTITY=ADDRESS...]
// It prints "at ADDRESS", "hears IDENTITY", "silent IDENTITY" after 4 s, and "ended IDENTITY". The
// job's secret is in STORMO_TEST_SECRET.
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <stormo/membership/member_links.h>

namespace {

using namespace std::chrono_literals;
using namespace stormo;
using membership::MemberLinks;

constexpr Duration kBeat = 50ms;
constexpr Duration kSilence = 4s;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

class Member {
 public:
  explicit Member(std::string identity) : status_{.from = {std::move(identity), 1}} {}

  Status run(const std::string& interface, const std::vector<protocol::ElasticEntry>& peers) {
    STORMO_ASSIGN_OR_RETURN(const std::string host, transport::interface_address(interface));
    STORMO_ASSIGN_OR_RETURN(const auto secret,
                            transport::Secret::from_hex(std::getenv("STORMO_TEST_SECRET")));
    STORMO_ASSIGN_OR_RETURN(
        const std::unique_ptr<MemberLinks> links,
        MemberLinks::start({.me = status_.from,
                            .address = {.host = host, .port = 0},
                            .ports = {},
                            .secret = secret,
                            .on_message = [this](const auto& message) { hear(message); },
                            .on_ended = [](const auto& id) { say("ended " + id.identity); },
                            .on_tick = [this](TimePoint now) { return beat(now); },
                            .on_event = {}}));
    links->set_peers(peers);
    say("at " + transport::to_string(links->address()));
    {
      const std::lock_guard lock(mutex_);
      links_ = links.get();
      for (const auto& peer : peers) heard_at_[peer.id.identity];
    }
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    int signal = 0;
    sigwait(&term, &signal);
    const std::lock_guard lock(mutex_);
    links_ = nullptr;
    return {};
  }

 private:
  void hear(const protocol::ElasticMessage& message) {
    const std::lock_guard lock(mutex_);
    const std::string& from = std::get<protocol::MemberStatus>(message).from.identity;
    TimePoint& at = heard_at_[from];
    if (at == TimePoint{}) say("hears " + from);
    at = std::chrono::steady_clock::now();
  }

  TimePoint beat(TimePoint now) {
    const std::lock_guard lock(mutex_);
    if (links_ == nullptr) return now + kBeat;
    if (now < next_beat_) return next_beat_;
    ++status_.progress;
    for (auto& [identity, at] : heard_at_) {
      links_->send(identity, status_);
      if (at == TimePoint{} || now - at < kSilence) continue;
      say("silent " + identity);
      at = {};
    }
    return next_beat_ = now + kBeat;
  }

  protocol::MemberStatus status_;
  std::mutex mutex_;
  MemberLinks* links_ = nullptr;
  std::map<std::string, TimePoint> heard_at_;  // zero: not, or not any more
  TimePoint next_beat_{};
};

}  // namespace

int main(int argc, char** argv) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, nullptr);
  std::vector<protocol::ElasticEntry> peers;
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t sign = text.find('=');
    peers.push_back({.id = {text.substr(0, sign), 1}, .address = text.substr(sign + 1)});
  }
  const Status done = Member(argv[1]).run(argv[2], peers);
  if (!done.ok()) std::fprintf(stderr, "%s\n", done.to_string().c_str());
  return done.ok() ? 0 : 1;
}
