// Who starts ranks again when nobody else is left who could.
//
// Idea: a process learns how another one ended only as its parent. So the keeper is the agent's
// parent, and a subreaper: when the agent ends, its ranks become children of the keeper. They see
// that the agent has ended, as without a keeper, and need nothing of it.
#include <stormo/launch/job/keeper.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/launch/process/outlive.h>
#include <stormo/protocol/supervisor.h>
#include <stormo/transport/call/frame.h>

namespace stormo::launch {
namespace {

/// A description holds an environment, which the kernel bounds far below this.
constexpr std::size_t kMaxNews = 16u << 20;
/// For ranks that are left when one has ended well: they may still save. One that has come too late
/// finds nobody, and ends by itself.
constexpr Duration kSaving = std::chrono::seconds(60);
constexpr int kKilledBase = 128;
/// Who stand in for each other, see protocol::RankPlace.
constexpr int kRanksOfHost = 1;

/// What the agent tells. An empty `job`: it is of `rank`.
struct News {
  bool is_end = false;
  std::string job;
  Rank rank = 0;
  KeptRank state;
};
void fields(auto& visit, transport::Like<News> auto& news) {
  visit("news of an agent", news.is_end, transport::at_most(kMaxNews, news.job), news.rank,
        news.state);
}

/// The launcher sees the end of this process as that of its agent.
int end_as(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  sigset_t all;
  ::sigfillset(&all);
  ::signal(signal, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
  ::kill(::getpid(), signal);
  return kKilledBase + signal;
}

class Keeper final : public RankListener {
 public:
  Keeper(EventLoop& loop, Orphans& orphans, pid_t agent, Descriptor agents_end)
      : loop_(loop), orphans_(orphans), agent_(agent), link_(std::move(agents_end)) {}

  Result<int> run() {
    STORMO_RETURN_IF_ERROR(await_notice());
    STORMO_RETURN_IF_ERROR(loop_.watch_readable(link_.get(), [this] { read_link(); }));
    while (link_.valid()) STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::never()));
    const int status = status_of_agent();
    if (!is_needed()) return end_as(status);
    STORMO_RETURN_IF_ERROR(take_over());
    while (!is_done_) {
      const TimePoint wake = supervisor_->wakes_at().value_or(TimePoint::max());
      STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::at(std::min(wake, ranks_->wakes_at()))));
      ranks_->tick(clock_.now());
      tell(protocol::Tick{});
    }
    return 0;
  }

  void on_started(Rank rank, pid_t process) override {
    tell(protocol::Started{number_of(rank), process});
  }
  void on_not_started(Rank rank, const Status& why) override {
    tell(protocol::NotStarted{number_of(rank), why.message()});
  }
  void on_exited(Rank rank, int code) override { tell(protocol::Exited{number_of(rank), code}); }
  void on_signalled(Rank rank, int signal, std::string_view why) override {
    tell(protocol::Signalled{number_of(rank), signal, std::string(why)});
  }
  // a rank without launcher writes to files, and nobody hears the rest
  void on_output(Rank, Stream, std::string_view) override {}
  void on_output_end(Rank, Stream) override {}
  void on_message(std::string_view, std::string_view) override {}
  void on_acceptor(int, std::string_view) override {}
  void on_host_lost(int, std::string_view) override {}

 private:
  Status await_notice();
  void take_notice();
  void read_link();
  Status take(const News& news);
  int status_of_agent() const;
  bool is_needed() const;
  Status take_over();
  void tell(const protocol::JobEvent& event);
  /// The supervisor's: from 0, of the ranks of this host.
  Rank number_of(Rank rank) const {
    return static_cast<Rank>(std::ranges::find(numbers_, rank) - numbers_.begin());
  }

  EventLoop& loop_;
  Orphans& orphans_;
  const pid_t agent_;
  Descriptor link_;  ///< to the agent, until that has ended
  Descriptor signals_;
  transport::FrameSplitter news_{"agent", kMaxNews};
  bool is_over_ = false;  ///< the launcher has ended the job, or somebody the agent
  bool is_noticed_ = false;
  std::optional<HostJob> job_;  ///< of an elastic job
  std::map<Rank, KeptRank> kept_;
  RealClock clock_;
  std::vector<Rank> numbers_;
  std::optional<protocol::Supervisor> supervisor_;  ///< from when it has taken over
  std::unique_ptr<LocalRanks> ranks_;
  bool is_done_ = false;
};

Status Keeper::await_notice() {
  sigset_t notice;
  ::sigemptyset(&notice);
  ::sigaddset(&notice, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &notice, nullptr);
  signals_ = Descriptor(::signalfd(-1, &notice, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_.valid()) return errno_error("signalfd");
  return loop_.watch_readable(signals_.get(), [this] { take_notice(); });
}

// The agent may have got the signal, too: what comes by the link is the same notice.
void Keeper::take_notice() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
  if (supervisor_) return tell(protocol::UserSignal{SIGTERM});
  if (job_ && !std::exchange(is_noticed_, true)) {
    const char byte = 0;
    [[maybe_unused]] const ssize_t n = ::send(link_.get(), &byte, 1, MSG_NOSIGNAL);
    return;
  }
  is_over_ = true;
  ::kill(agent_, job_ ? SIGKILL : SIGTERM);
}

void Keeper::read_link() {
  std::array<char, 64 * 1024> buffer;
  const ssize_t n = ::read(link_.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n > 0) news_.append({buffer.data(), static_cast<std::size_t>(n)});
  Status status;
  while (n > 0 && status.ok()) {
    const auto body = news_.next();
    if (body.ok() && !*body) return;
    status = body.status();
    if (!status.ok()) break;
    const auto news = transport::decode<News>("agent", **body);
    status = news.ok() ? take(*news) : news.status();
  }
  loop_.forget(link_.get());
  link_.reset();
}

Status Keeper::take(const News& news) {
  if (news.is_end) {
    is_over_ = true;
  } else if (!news.job.empty()) {
    STORMO_ASSIGN_OR_RETURN(job_, decode_host_job(news.job));
    // the launcher may be the parent, and its end is not that of this process
    if (outlives_launcher(*job_)) ::prctl(PR_SET_PDEATHSIG, 0);
  } else {
    KeptRank& kept = kept_[news.rank];
    if (kept.process > 0) forget_child(kept.process);
    kept = news.state;
    if (kept.process > 0 && !kept.has_ended) note_child(kept.process);  // it will be
  }
  return {};
}

int Keeper::status_of_agent() const {
  int status = 0;
  while (::waitpid(agent_, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// Ranks of a program that does not outlive its parent end with the agent.
bool Keeper::is_needed() const {
  return !is_over_ && job_ && outlives_launcher(*job_) &&
         std::ranges::any_of(kept_, [](const auto& entry) {
           return !entry.second.has_ended && is_outliving(entry.second.process);
         });
}

/// Who has ended well, or as it was told, does not come back.
Status Keeper::take_over() {
  if (::chdir(job_->directory.c_str()) != 0) return errno_error("working directory");
  STORMO_ASSIGN_OR_RETURN(Guard guard, Guard::start());
  std::vector<protocol::RankPlace> places;
  std::erase_if(kept_, [](const auto& entry) {
    const KeptRank& kept = entry.second;
    return kept.process == 0 || (kept.has_ended && kept.signal == 0 && kept.code == 0);
  });
  for (const auto& entry : kept_) {
    numbers_.push_back(entry.first);
    places.push_back({.cross_rank = job_->cross_rank,
                      .host = job_->host,
                      .may_be_lost = true,
                      .stands_in = kRanksOfHost});
  }
  job_->environment.push_back(std::string(kNoLauncherVariable) + "=1");
  job_->forks = false;  // whoever is lost would have to wait until the program is loaded
  STORMO_ASSIGN_OR_RETURN(
      ranks_, LocalRanks::stand_by(loop_, orphans_, *std::move(job_), std::move(guard), *this));
  ranks_->pause_output(true);  // what a rank says before it writes to files, it takes there
  supervisor_.emplace(std::move(places),
                      protocol::Supervisor::Options{.follow = kSaving, .replaces = true});
  for (const auto& [rank, kept] : kept_) {
    on_started(rank, kept.process);
    if (!kept.has_ended) STORMO_RETURN_IF_ERROR(ranks_->adopt(rank, kept.process));
  }
  for (const auto& [rank, kept] : kept_) {
    if (!kept.has_ended) continue;
    if (kept.signal != 0)
      on_signalled(rank, kept.signal, {});
    else
      on_exited(rank, kept.code);
  }
  return {};
}

void Keeper::tell(const protocol::JobEvent& event) {
  for (const protocol::JobAction& action : supervisor_->handle(event, clock_.now())) {
    if (const auto* signal = std::get_if<protocol::SignalAll>(&action)) {
      ranks_->send_signal(signal->signal);
    } else if (const auto* start = std::get_if<protocol::StartRank>(&action)) {
      const Rank rank = numbers_[static_cast<std::size_t>(start->rank)];
      const KeptRank& kept = kept_.at(rank);
      // the supervisor has counted from 1
      ranks_->start_later({rank, kept.local_rank, kept.incarnation - 1 + start->incarnation});
    } else if (std::holds_alternative<protocol::JobDone>(action)) {
      is_done_ = true;
    }
  }
}

/// Nothing of the agent's stays open: whoever reads its output must see its end.
void leave_streams() {
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::dup2(null.get(), standard);
}

Result<int> run_keeper(pid_t agent, Descriptor agents_end) {
  leave_streams();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::create());
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<Orphans> orphans, Orphans::adopt(*loop));
  return Keeper(*loop, *orphans, agent, std::move(agents_end)).run();
}

}  // namespace

void KeeperLink::begin(const HostJob& job) {
  ::prctl(PR_SET_PDEATHSIG, 0);
  News news{.is_end = false, .job = encode(job), .rank = 0, .state = {}};
  std::string text = transport::encode(news);
  send(text);
  transport::cleanse(text);
  transport::cleanse(news.job);
  for (int i = 0; i < job.local_size; ++i) starts({job.first_rank + i, i, 1});
}

void KeeperLink::starts(const LaterStart& start) {
  ranks_[start.rank] = {.local_rank = start.local_rank, .incarnation = start.incarnation};
}

void KeeperLink::started(Rank rank, pid_t process) {
  ranks_[rank].process = process;
  tell(rank);
}

void KeeperLink::exited(Rank rank, int code) {
  ranks_[rank].has_ended = true;
  ranks_[rank].code = code;
  tell(rank);
}

void KeeperLink::signalled(Rank rank, int signal) {
  ranks_[rank].has_ended = true;
  ranks_[rank].signal = signal;
  tell(rank);
}

void KeeperLink::end() {
  send(transport::encode(News{.is_end = true, .job = {}, .rank = 0, .state = {}}));
}

void KeeperLink::tell(Rank rank) {
  send(transport::encode(News{.is_end = false, .job = {}, .rank = rank, .state = ranks_[rank]}));
}

void KeeperLink::send(std::string_view body) {
  std::string bytes = transport::frame(body);
  std::string_view left = bytes;
  while (!left.empty()) {
    const ssize_t n = ::send(keeper_.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    left.remove_prefix(static_cast<std::size_t>(n));
  }
  transport::cleanse(bytes);
}

Result<int> with_keeper(const std::function<Result<int>(KeeperLink)>& agent) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return errno_error("socketpair");
  }
  Descriptor keepers(ends[0]);
  Descriptor agents(ends[1]);
  const pid_t keeper = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return errno_error("start the agent of this host");
  if (child == 0) {
    agents.reset();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // until there is an elastic job
    if (::getppid() != keeper) ::_exit(1);
    return agent(KeeperLink(std::move(keepers)));
  }
  keepers.reset();
  return run_keeper(child, std::move(agents));
}

}  // namespace stormo::launch
