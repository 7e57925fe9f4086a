#include <stormo/launch/job/launcher.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/printable.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/job/job_plan.h>
#include <stormo/launch/job/job_report.h>
#include <stormo/launch/job/job_size.h>
#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/job/remote_host.h>
#include <stormo/launch/messages/job_control.h>
#include <stormo/launch/process/descriptors.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/launch/process/signals.h>
#include <stormo/launch/register/job_register.h>
#include <stormo/launch/register_hosts.h>
#include <stormo/membership/register_address.h>
#include <stormo/protocol/supervisor.h>

namespace stormo::launch {
namespace {

/// For what is left of output and shells once all ranks are gone.
constexpr Duration kEndTime = std::chrono::seconds(1);
/// Exit code of a job that ended well but could not say all it had to.
constexpr int kOutputLost = 1;
constexpr int kSignalBase = 128;
/// For ranks that are left when one has ended well. Those of an elastic job end together, but for
/// one that was started too late to become a member.
constexpr Duration kFollow = protocol::Supervisor::Options{}.follow;
constexpr Duration kElasticFollow = std::chrono::seconds(2);
/// For the record of the members.
constexpr Duration kRegisterTime = std::chrono::seconds(1);
/// How often who waits for the loop's thread looks whether that still runs.
constexpr auto kLook = std::chrono::milliseconds(20);

/// How a job ended, for an EndListener.
struct Ending {
  int exit_code = 0;
  std::string report;
  bool rank_0_exited = false;
};

/// One job while it runs: carries events from hosts, Store and user to the supervisor, and its
/// decisions back.
class RunningJob final : public RankListener {
 public:
  /// `own_register`: the acceptor of this host, of an elastic job with a register of its own.
  RunningJob(EventLoop& loop, Orphans& orphans, JobPlan plan, const LaunchOptions& options,
             std::unique_ptr<JobRegister> own_register)
      : loop_(loop),
        orphans_(orphans),
        options_(options),
        plan_(std::move(plan)),
        seats_(seats_of(plan_)),
        loaded_(options.loaded.get()),
        output_(loop, options.output, plan_.may_be_lost.count > 0 && plan_.may_be_lost.first == 0),
        supervisor_(places_of(plan_), {.follow = options.elastic ? kElasticFollow : kFollow,
                                       .rank_0_reports = options.rank_0_reports,
                                       .replaces = plan_.elastic && plan_.elastic->replaces}),
        register_(std::move(own_register)) {}

  Result<Ending> run(std::vector<std::optional<Guard>> guards, SignalReader& signals);

  void on_started(Rank rank, pid_t pid) override {
    processes_[rank] = pid;
    tell(protocol::Started{rank, pid});
  }
  void on_not_started(Rank rank, const Status& why) override {
    if (why.code() == Code::kInterrupted) take_signals();
    tell(protocol::NotStarted{rank, why.message()});
  }
  void on_output(Rank rank, Stream stream, std::string_view bytes) override {
    output_.write(rank, stream, bytes);
  }
  void on_output_end(Rank rank, Stream stream) override { output_.end(rank, stream); }
  void on_exited(Rank rank, int code) override {
    report_.exited(rank, code);
    rank_0_exited_ = rank_0_exited_ || rank == 0;
    tell(protocol::Exited{rank, code});
  }
  void on_signalled(Rank rank, int signal, std::string_view why) override {
    report_.signalled(rank, signal);
    tell(protocol::Signalled{rank, signal, std::string(why)});
  }
  void on_message(std::string_view host, std::string_view text) override {
    output_.host_line(host, text);
  }
  void on_host_leaves(int cross_rank) override {
    report_.host_leaves(cross_rank);
    tell(protocol::HostLeaves{cross_rank});
  }
  void on_host_lost(int cross_rank, std::string_view reason) override {
    const HostJob& host = plan_.hosts[static_cast<std::size_t>(cross_rank)];
    if (host.acceptor >= 0 && host.register_address.empty()) {
      unstarted_ = io_error(
          fmt::format("host {}, which has a part of the job's register: {}", host.host, reason));
    } else {
      tell(protocol::HostLost{cross_rank, std::string(reason)});
    }
  }
  void on_acceptor(int cross_rank, std::string_view address) override {
    const int acceptor = plan_.hosts[static_cast<std::size_t>(cross_rank)].acceptor;
    if (acceptor >= 0) acceptors_[static_cast<std::size_t>(acceptor)] = address;
  }

 private:
  Status start_store();
  Status start_register();
  void read_register();
  void use_register(const std::string& address);
  Status start_control();
  JobSize answer(const SizeRequest& request);
  JobSize resize(const SizeRequest& request);
  Status use_hosts(JobPlan wider);
  Status start_hosts(std::vector<std::optional<Guard>> guards);
  Status start_agents_and_register();
  Result<RemoteHost*> start_agent(std::size_t host);
  Status wait_until_done();
  void tell(const protocol::JobEvent& event);
  HostRanks& host_of(Rank rank) { return *hosts_[static_cast<std::size_t>(seat(rank).host)]; }
  const Seat& seat(Rank rank) const { return seats_[static_cast<std::size_t>(rank)]; }
  std::string identity(Rank rank) const;
  void take_signals();
  void take_signal(int signal);
  void end();

  EventLoop& loop_;
  Orphans& orphans_;
  const LaunchOptions& options_;
  JobPlan plan_;
  const std::string job_name_ = random_job_name();  ///< of an elastic job
  std::vector<Seat> seats_;                         ///< by rank
  std::map<Rank, pid_t> processes_;                 ///< the newest of each
  ForkServer* loaded_;
  JobOutput output_;
  JobReport report_{output_, plan_};
  protocol::Supervisor supervisor_;
  RealClock clock_;
  SignalReader* signals_ = nullptr;
  std::vector<std::unique_ptr<HostRanks>> hosts_;  ///< as in plan_; null: not started yet
  std::unique_ptr<transport::StoreServer> store_;
  std::unique_ptr<JobRegister> register_;
  std::vector<std::string> acceptors_;  ///< their addresses; empty: not known yet
  Status unstarted_;                    ///< why the register cannot be had
  std::atomic<bool> ends_ = false;      ///< nothing that is posted to the loop is done any more
  std::unique_ptr<membership::Register> members_;  ///< used by the thread of control_
  std::unique_ptr<JobControl> control_;            ///< of a job whose size may change
  std::optional<protocol::JobDone> done_;
  bool rank_0_exited_ = false;
  bool asked_store_ = false;
};

Result<Ending> RunningJob::run(std::vector<std::optional<Guard>> guards, SignalReader& signals) {
  signals_ = &signals;
  hosts_.resize(plan_.hosts.size());
  STORMO_RETURN_IF_ERROR(start_store());
  if (plan_.elastic) STORMO_RETURN_IF_ERROR(start_register());
  report_.started();
  Status status = start_hosts(std::move(guards));
  if (status.code() == Code::kInterrupted) {
    const int signal = signals.next() == SIGINT ? SIGINT : SIGTERM;
    done_ = {kSignalBase + signal, status.message()};
    output_.interrupt();
  } else if (status.ok()) {
    STORMO_RETURN_IF_ERROR(loop_.watch_readable(signals.descriptor(), [this] { take_signals(); }));
    status = wait_until_done();
  }
  end();
  if (!status.ok() && status.code() != Code::kInterrupted) return status;
  if (!done_->report.empty()) output_.message(done_->report);
  report_.say_lost();
  const auto exit_code = [&] {
    return done_->exit_code == 0 && output_.lost() ? kOutputLost : done_->exit_code;
  };
  report_.ended(exit_code(), done_->report);
  STORMO_RETURN_IF_ERROR(output_.drain());
  return Ending{exit_code(), done_->report, rank_0_exited_};
}

void RunningJob::take_signals() {
  while (const int signal = signals_->next()) take_signal(signal);
}

void RunningJob::take_signal(int signal) {
  // A closed terminal ends the run as a scheduler would.
  if (signal == SIGHUP) signal = SIGTERM;
  if (signal == SIGINT || signal == SIGTERM) output_.interrupt();
  tell(protocol::UserSignal{signal});
}

Status RunningJob::start_store() {
  transport::StoreServer::Options options;
  options.listen = plan_.listen;
  options.secret = transport::Secret::random();
  if (options.listen != "unix:") options.ports = plan_.hosts.front().ports;
  // Both are called on the server's thread.
  options.on_refused = [this](std::string_view text) {
    loop_.post([this, line = std::string(text)] { report_.refused(line); });
  };
  options.on_set = [this](std::string_view key, std::string_view value) {
    if (key == protocol::kFailureKey)
      loop_.post([this, text = std::string(value)] { tell(protocol::FailureReported{text}); });
  };
  const transport::Secret secret = options.secret;
  STORMO_ASSIGN_OR_RETURN(store_, transport::StoreServer::start(std::move(options)));
  for (HostJob& h : plan_.hosts) {
    h.store = store_->address();
    h.secret = secret;
  }
  return {};
}

Status RunningJob::start_register() {
  for (HostJob& h : plan_.hosts) h.name = job_name_;
  acceptors_.resize(plan_.acceptors.size());
  if (register_ != nullptr) {
    const std::size_t index = *own_acceptor(plan_);
    STORMO_ASSIGN_OR_RETURN(acceptors_[index],
                            register_->serve({.job = job_name_,
                                              .index = static_cast<std::int32_t>(index),
                                              .count = static_cast<std::int32_t>(acceptors_.size()),
                                              .host = plan_.address,
                                              .ports = plan_.hosts.front().ports,
                                              .secret = plan_.hosts.front().secret}));
    STORMO_RETURN_IF_ERROR(
        loop_.watch_readable(register_->descriptor(), [this] { read_register(); }));
  }
  if (acceptors_.empty()) {
    use_register(plan_.elastic->register_address);
  } else if (acceptors_.size() == 1) {
    use_register("quorum://" + acceptors_.front());
  }
  return {};
}

/// A job that nobody can ask for another size runs all the same.
Status RunningJob::start_control() {
  const HostJob& any = plan_.hosts.front();
  STORMO_ASSIGN_OR_RETURN(
      members_, membership::open_register(any.register_address,
                                          {.job = any.name, .secret = any.secret, .password = {}}));
  auto control = JobControl::start(plan_.elastic->control,
                                   [this](const SizeRequest& request) { return answer(request); });
  if (control.ok()) {
    control_ = *std::move(control);
  } else {
    output_.message("`stormo resize` does not reach this job: " + control.status().message());
  }
  return {};
}

void RunningJob::use_register(const std::string& address) {
  for (HostJob& h : plan_.hosts) h.register_address = address;
}

void RunningJob::read_register() {
  const std::vector<std::string> lines = register_->lines();
  for (const std::string& line : lines) report_.refused(line);
  if (!lines.empty()) return;
  loop_.forget(register_->descriptor());
  report_.register_ended(acceptors_.size());
}

/// On the thread of control_.
JobSize RunningJob::answer(const SizeRequest& request) {
  struct Seen {
    JobSize size;
    std::vector<std::string> identities;
    bool is_settled = false;
  };
  const auto record = members_->read(Deadline::after(kRegisterTime));
  if (!request.changes_nothing() && record.ok() && record->epoch == 0) {
    return {.refused = "the job does not train yet: ask again when it does"};
  }
  const auto seen = std::make_shared<std::promise<Seen>>();
  loop_.post([this, seen, request] {
    if (ends_) return;
    Seen now{.size = resize(request)};
    now.is_settled = !supervisor_.is_anybody_leaving();
    for (const Rank r : supervisor_.ranks()) now.identities.push_back(identity(r));
    seen->set_value(std::move(now));
  });
  std::future<Seen> future = seen->get_future();
  while (future.wait_for(kLook) != std::future_status::ready) {
    if (ends_) return {.refused = "the job ends"};
  }
  Seen now = future.get();
  if (record.ok()) compare(*record, now.identities, now.size);
  now.size.is_reached &= now.is_settled;
  return now.size;
}

JobSize RunningJob::resize(const SizeRequest& request) {
  JobSize size{.command = fmt::format("{}", fmt::join(plan_.hosts.front().program, " "))};
  size.before = size.ranks = supervisor_.num_ranks();
  for (const Rank r : supervisor_.ranks()) {
    const bool here = plan_.shells[static_cast<std::size_t>(seat(r).host)].empty();
    if (here && processes_.contains(r)) size.processes.push_back(processes_[r]);
  }
  if (request.changes_nothing()) return size;
  JobPlan wider = plan_;
  const Result<int> slots = add_hosts(request.hosts, options_, own_environment(), wider);
  const int ranks = request.ranks != 0 ? request.ranks : size.ranks + (slots.ok() ? *slots : 0);
  if (request.hosts.empty() && ranks == size.ranks) return size;
  Result<protocol::SizeAsked> asked = size_asked(ranks, wider, supervisor_);
  Status wrong = slots.ok() ? asked.status() : slots.status();
  if (wrong.ok() && !request.hosts.empty()) wrong = use_hosts(std::move(wider));
  if (!wrong.ok()) {
    size.refused = wrong.message();
    return size;
  }
  size.ranks = ranks;
  report_.resized(size.before, ranks);
  for (const protocol::RankPlace& place : asked->places) {
    const auto is_there = [&place](const Seat& s) { return s.host == place.cross_rank; };
    seats_.push_back({.host = place.cross_rank,
                      .local_rank = static_cast<int>(std::ranges::count_if(seats_, is_there))});
  }
  tell(*asked);
  return size;
}

/// Starts the agents of hosts that were added to the plan.
Status RunningJob::use_hosts(JobPlan wider) {
  STORMO_RETURN_IF_ERROR(provide_descriptors(descriptors_of(wider)));
  JobPlan before = std::exchange(plan_, std::move(wider));
  const std::size_t known = hosts_.size();
  hosts_.resize(plan_.hosts.size());
  Status started;
  for (std::size_t i = known; i < hosts_.size() && started.ok(); ++i) {
    started = start_agent(i).status();
  }
  if (started.ok()) return {};
  hosts_.resize(known);
  plan_ = std::move(before);
  return started;
}

std::string RunningJob::identity(Rank rank) const {
  return fmt::format("{}/{}", plan_.hosts[static_cast<std::size_t>(seat(rank).host)].host,
                     seat(rank).local_rank);
}

Status RunningJob::start_hosts(std::vector<std::optional<Guard>> guards) {
  if (acceptors_.size() > 1) STORMO_RETURN_IF_ERROR(start_agents_and_register());
  for (std::size_t i = 0; i < plan_.hosts.size(); ++i) {
    if (guards[i]) {
      STORMO_ASSIGN_OR_RETURN(hosts_[i], LocalRanks::start(loop_, orphans_, plan_.hosts[i],
                                                           std::move(*guards[i]), *this, loaded_));
    } else if (hosts_[i] == nullptr) {
      STORMO_RETURN_IF_ERROR(start_agent(i).status());
    }
  }
  if (loaded_ != nullptr && !plan_.elastic) loaded_->end();
  const bool may_change = plan_.elastic && plan_.elastic->replaces;
  return may_change && !plan_.elastic->control.empty() ? start_control() : Status();
}

Result<RemoteHost*> RunningJob::start_agent(std::size_t host) {
  STORMO_ASSIGN_OR_RETURN(
      auto agent,
      RemoteHost::start(loop_, plan_.hosts[host], plan_.shells[host], own_environment(), *this));
  RemoteHost* const started = agent.get();
  hosts_[host] = std::move(agent);
  return started;
}

/// Every rank finds the address of the register when it starts: so all parts of it come first.
Status RunningJob::start_agents_and_register() {
  std::vector<RemoteHost*> agents;
  for (std::size_t i = 0; i < plan_.hosts.size(); ++i) {
    if (plan_.shells[i].empty()) continue;
    STORMO_ASSIGN_OR_RETURN(agents.emplace_back(), start_agent(i));
  }
  while (std::ranges::any_of(acceptors_, &std::string::empty)) {
    STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::after(kLook)));
    for (RemoteHost* const agent : agents) agent->tick(clock_.now());
    STORMO_RETURN_IF_ERROR(unstarted_);
    if (end_is_wanted()) return {Code::kInterrupted, "interrupted while processes were started"};
  }
  const std::string address = fmt::format("quorum://{}", fmt::join(acceptors_, ","));
  use_register(address);
  for (RemoteHost* const agent : agents) agent->begin(address);
  return {};
}

Status RunningJob::wait_until_done() {
  while (!done_) {
    TimePoint wake = supervisor_.wakes_at().value_or(TimePoint::max());
    for (const auto& host : hosts_) wake = std::min(wake, host->wakes_at());
    STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::at(wake)));
    const TimePoint now = clock_.now();
    for (const auto& host : hosts_) {
      host->tick(now);
      host->pause_output(output_.congested());
    }
    if (!done_) tell(protocol::Tick{});
  }
  return {};
}

void RunningJob::tell(const protocol::JobEvent& event) {
  for (const protocol::JobAction& action : supervisor_.handle(event, clock_.now())) {
    if (const auto* signal = std::get_if<protocol::SignalAll>(&action)) {
      if (signal->signal == SIGTERM || signal->signal == SIGKILL) output_.hurry();
      for (const auto& host : hosts_) {
        if (host == nullptr) continue;
        host->send_signal(signal->signal);
        host->pause_output(output_.congested());
      }
    } else if (const auto* lost = std::get_if<protocol::RankLost>(&action)) {
      report_.note(*lost);
    } else if (const auto* start = std::get_if<protocol::StartRank>(&action)) {
      host_of(start->rank)
          .start_later({start->rank, seat(start->rank).local_rank, start->incarnation});
    } else if (const auto* leave = std::get_if<protocol::LeaveRank>(&action)) {
      host_of(leave->rank).ask_to_leave(leave->rank);
    } else if (const auto* left = std::get_if<protocol::RankLeft>(&action)) {
      report_.note(*left);
    } else if (const auto* started = std::get_if<protocol::RankStarted>(&action)) {
      report_.note(*started);
    } else {
      done_ = std::get<protocol::JobDone>(action);
    }
  }
  if (!store_ || !supervisor_.lingers() || std::exchange(asked_store_, true)) return;
  store_->when_deserted([this] { loop_.post([this] { tell(protocol::AllHeard{}); }); });
}

void RunningJob::end() {
  ends_ = true;
  control_.reset();
  const Deadline by = Deadline::after(kEndTime);
  std::erase(hosts_, nullptr);
  for (const auto& host : hosts_) host->begin_end();
  for (const auto& host : hosts_) host->end(by);
  hosts_.clear();
  if (loaded_ != nullptr) loaded_->end();
  store_.reset();
  if (register_ != nullptr) loop_.forget(register_->descriptor());
  register_.reset();
  // Refusals that other threads have posted but this one has not yet shown.
  (void)loop_.run_once(Deadline::at(clock_.now()));
  output_.end_lines();
}

/// Signals have their usual effect again when it returns.
Result<Ending> run_job(const LaunchOptions& options) {
  STORMO_ASSIGN_OR_RETURN(JobPlan plan, plan_job(options, own_environment()));
  STORMO_RETURN_IF_ERROR(provide_descriptors(descriptors_of(plan)));
  fill_standard_descriptors();
  STORMO_ASSIGN_OR_RETURN(const auto signals, SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::create());
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<Orphans> orphans, Orphans::adopt(*loop));
  // The guards, and the register, are forks: made while this process has one thread.
  std::vector<std::optional<Guard>> guards(plan.hosts.size());
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    if (!plan.shells[i].empty()) continue;
    STORMO_ASSIGN_OR_RETURN(Guard guard, Guard::start());
    guards[i].emplace(std::move(guard));
  }
  std::unique_ptr<JobRegister> own_register;
  if (own_acceptor(plan)) {
    STORMO_ASSIGN_OR_RETURN(own_register, JobRegister::start());
  }
  RunningJob job(*loop, *orphans, std::move(plan), options, std::move(own_register));
  return job.run(std::move(guards), *signals);
}

}  // namespace

Result<int> launch(const LaunchOptions& options) {
  STORMO_ASSIGN_OR_RETURN(const Ending ending, run_job(options));
  // it may write to somebody who does not read
  if (options.on_end) options.on_end(ending.exit_code, ending.report, ending.rank_0_exited);
  return ending.exit_code;
}

}  // namespace stormo::launch
