#include <stormo/launch/job/ask_hosts.h>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include <stormo/base/units.h>
#include <stormo/launch/host_spec.h>
#include <stormo/launch/job/job_plan.h>
#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/job/remote_host.h>
#include <stormo/launch/process/descriptors.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/launch/process/signals.h>
#include <stormo/transport/store/store.h>

namespace stormo::launch {
namespace {

constexpr Duration kLeaveTime = std::chrono::seconds(1);
/// For hosts to arrive; an agent that says nothing is given up before.
constexpr Duration kArrivalTime = std::chrono::seconds(90);
constexpr std::size_t kMostOutput = 1 << 20;
constexpr std::string_view kArrival = "hosts/arrived/";

/// Each with one slot.
std::string one_process_each(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& h : hosts) {
    const bool is_v6 = h.name.find(':') != std::string::npos;
    text += fmt::format("{}{}:1", text.empty() ? "" : ",",
                        is_v6 ? fmt::format("[{}]", h.name) : h.name);
  }
  return text;
}

/// One host while it is asked.
struct Asked {
  HostAnswer answer;
  std::string last_error;  ///< line of its process
  bool arrived = false;
  bool ended = false;  ///< its process
  int open_streams = 2;
  bool lost = false;
  bool is_over() const { return lost || (ended && open_streams == 0); }
};

class Survey final : public RankListener {
 public:
  Survey(EventLoop& loop, Orphans& orphans, JobPlan plan)
      : loop_(loop), orphans_(orphans), plan_(std::move(plan)), hosts_(plan_.hosts.size()) {}

  Result<std::vector<HostAnswer>> run(std::vector<std::optional<Guard>> guards,
                                      SignalReader& signals, Duration at_most);

  void on_started(Rank, pid_t) override {}
  void on_not_started(Rank, const Status&) override {}  // none is started again
  void on_output(Rank rank, Stream stream, std::string_view bytes) override {
    if (stream == Stream::kOutput) {
      std::string& output = of(rank).answer.output;
      output.append(bytes.substr(0, kMostOutput - output.size()));
    } else {
      errors_[static_cast<std::size_t>(rank)].feed(
          bytes, [&](std::string_view line) { of(rank).last_error = line; });
    }
  }
  void on_output_end(Rank rank, Stream stream) override {
    if (stream == Stream::kError)
      errors_[static_cast<std::size_t>(rank)].finish(
          [&](std::string_view line) { of(rank).last_error = line; });
    --of(rank).open_streams;
  }
  void on_exited(Rank rank, int code) override {
    end(rank, code == 0 ? "" : fmt::format("its process ended with exit code {}", code));
  }
  void on_signalled(Rank rank, int signal, std::string_view why) override {
    end(rank, fmt::format("its process was killed by signal {}{}{}", signal,
                          why.empty() ? "" : ": ", why));
  }
  void on_acceptor(int, std::string_view) override {}
  void on_message(std::string_view, std::string_view) override {}
  void on_host_lost(int cross_rank, std::string_view reason) override { lose(cross_rank, reason); }

 private:
  Asked& of(Rank rank) { return hosts_[static_cast<std::size_t>(rank)]; }
  void end(Rank rank, std::string problem) {
    of(rank).ended = true;
    of(rank).answer.problem = std::move(problem);
  }
  void lose(int host, std::string_view reason) {
    of(host).lost = true;
    of(host).answer.problem = reason;
  }
  Status start_store();
  void start_hosts(std::vector<std::optional<Guard>> guards);
  Status wait(SignalReader& signals, Duration at_most);
  bool announce_present();
  void arrive(std::string_view key);
  std::vector<HostAnswer> answers();

  EventLoop& loop_;
  Orphans& orphans_;
  JobPlan plan_;
  std::vector<Asked> hosts_;  ///< by rank, which is the host's number: one process each
  std::vector<LineSplitter> errors_{hosts_.size()};
  std::vector<std::unique_ptr<HostRanks>> ranks_;
  std::unique_ptr<transport::StoreServer> store_;
};

Status Survey::start_store() {
  transport::StoreServer::Options options;
  options.listen = plan_.listen;
  options.secret = transport::Secret::random();
  if (options.listen != "unix:") options.ports = plan_.hosts.front().ports;
  options.on_set = [this](std::string_view key, std::string_view) {  // on the server's thread
    if (key.starts_with(kArrival)) loop_.post([this, k = std::string(key)] { arrive(k); });
  };
  const transport::Secret secret = options.secret;
  STORMO_ASSIGN_OR_RETURN(store_, transport::StoreServer::start(std::move(options)));
  for (HostJob& h : plan_.hosts) {
    h.store = store_->address();
    h.secret = secret;
  }
  return {};
}

void Survey::start_hosts(std::vector<std::optional<Guard>> guards) {
  const std::vector<std::string> environment = own_environment();
  for (std::size_t i = 0; i < plan_.hosts.size(); ++i) {
    const HostJob& host = plan_.hosts[i];
    hosts_[i].answer.host = host.host;
    const auto keep = [&](auto started) {
      if (started.ok())
        ranks_.push_back(*std::move(started));
      else
        lose(static_cast<int>(i), started.status().message());
    };
    if (guards[i])
      keep(LocalRanks::start(loop_, orphans_, host, std::move(*guards[i]), *this));
    else
      keep(RemoteHost::start(loop_, host, plan_.shells[i], environment, *this));
  }
}

void Survey::arrive(std::string_view key) {
  for (Rank rank = 0; rank < static_cast<Rank>(hosts_.size()); ++rank)
    if (key == arrival_key(rank)) of(rank).arrived = true;
}

/// Once every host has arrived or will not come: true.
bool Survey::announce_present() {
  std::string present;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (!hosts_[i].arrived && !hosts_[i].is_over()) return false;
    if (hosts_[i].arrived) present += fmt::format("{}{}", present.empty() ? "" : ",", i);
  }
  store_->set(kPresentKey, present);
  return true;
}

Status Survey::wait(SignalReader& signals, Duration at_most) {
  Deadline by = Deadline::after(kArrivalTime);
  Duration limit = kArrivalTime;
  bool announced = false;
  int signal = 0;
  STORMO_RETURN_IF_ERROR(loop_.watch_readable(signals.descriptor(), [&] {
    while (const int s = signals.next()) signal = s == SIGHUP ? SIGTERM : s;
  }));
  const auto is_over = [](const Asked& h) { return h.is_over(); };
  while (!std::all_of(hosts_.begin(), hosts_.end(), is_over) && !by.expired()) {
    if (signal == SIGINT || signal == SIGTERM)
      return Status(Code::kInterrupted, signal == SIGINT ? "interrupted" : "terminated");
    if (!announced && (announced = announce_present())) by = Deadline::after(limit = at_most);
    TimePoint wake = by.when();
    for (const auto& ranks : ranks_) wake = std::min(wake, ranks->wakes_at());
    STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::at(wake)));
    for (const auto& ranks : ranks_) ranks->tick(RealClock().now());
  }
  for (Asked& h : hosts_)
    if (!h.is_over() && h.answer.problem.empty())
      h.answer.problem = "no whole answer within " + format_duration(limit);
  return {};
}

std::vector<HostAnswer> Survey::answers() {
  std::vector<HostAnswer> out;
  for (Asked& h : hosts_) {
    if (!h.answer.problem.empty() && !h.last_error.empty()) h.answer.problem += ": " + h.last_error;
    out.push_back(std::move(h.answer));
  }
  return out;
}

Result<std::vector<HostAnswer>> Survey::run(std::vector<std::optional<Guard>> guards,
                                            SignalReader& signals, Duration at_most) {
  STORMO_RETURN_IF_ERROR(start_store());
  start_hosts(std::move(guards));
  const Status done = wait(signals, at_most);
  loop_.forget(signals.descriptor());
  std::vector<HostAnswer> out = answers();
  const Deadline by = Deadline::after(kLeaveTime);
  for (const auto& ranks : ranks_) ranks->end(by);
  ranks_.clear();
  store_.reset();
  if (!done.ok()) return done;
  return out;
}

}  // namespace

std::string arrival_key(Rank rank) { return fmt::format("{}{}", kArrival, rank); }

Result<std::vector<HostAnswer>> ask_hosts(LaunchOptions options, Duration at_most) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts, parse_hosts(options.hosts));
  options.hosts = one_process_each(hosts);
  STORMO_ASSIGN_OR_RETURN(JobPlan plan, plan_job(options, own_environment()));
  const int count = static_cast<int>(plan.hosts.size());
  STORMO_RETURN_IF_ERROR(provide_descriptors(
      {.local_ranks = 1, .ranks = count, .other_hosts = count, .serves_store = true}));
  fill_standard_descriptors();
  STORMO_ASSIGN_OR_RETURN(const auto signals, SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::create());
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<Orphans> orphans, Orphans::adopt(*loop));
  // The guards are forks: made while this process has one thread.
  std::vector<std::optional<Guard>> guards(plan.hosts.size());
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    if (!plan.shells[i].empty()) continue;
    STORMO_ASSIGN_OR_RETURN(Guard guard, Guard::start());
    guards[i].emplace(std::move(guard));
  }
  return Survey(*loop, *orphans, std::move(plan)).run(std::move(guards), *signals, at_most);
}

}  // namespace stormo::launch
