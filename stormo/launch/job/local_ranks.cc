#include <stormo/launch/job/local_ranks.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <stormo/base/units.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/descriptors.h>
#include <stormo/launch/process/other_load.h>
#include <stormo/launch/secret_file.h>
#include <stormo/protocol/supervisor.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::launch {
namespace {

/// Read per wake-up and stream: enough for speed, little enough that no rank starves the others.
constexpr std::size_t kReadBytes = 64 * 1024;
/// A pipe is empty after these, unless somebody still writes to it.
constexpr int kReadsOfPipe = 16;
/// For the kernel to take killed ranks apart.
constexpr Duration kDying = std::chrono::seconds(1);

int sockets_of(const HostJob& job) {
  const std::string text(value_of(job.environment, "STORMO_SOCKETS"));
  return std::clamp(std::atoi(text.c_str()), 1, transport::TcpOptions::kMaxSockets);
}

/// Whether the descriptor is readable, or at its end; blocks until then, until `by`, or for a
/// second.
bool wait_readable(const Descriptor& fd, Deadline by) {
  pollfd p{fd.get(), POLLIN, 0};
  const TimePoint now = RealClock().now();
  return ::poll(&p, 1, transport::poll_timeout(now, by.when(), 1000)) > 0;
}

}  // namespace

std::unique_ptr<ForkServer> load_program(const HostJob& job, const std::string& file, pid_t group,
                                         const Cpus& cpus) {
  auto server =
      ForkServer::start({.file = file,
                         .argv = job.program,
                         .environment = without_placement(rank_environment(job, 0, cpus, -1)),
                         .group = group,
                         .cpus = {}});
  return server.ok() ? std::move(*server) : nullptr;
}

std::string oversubscription_note(const Cpus& cpus, int local_ranks) {
  const int cores = cpus.usable_cores();
  if (local_ranks <= cores) return {};
  return fmt::format(
      "{} ranks share {} {}: they are not bound, use one thread each and wait for each other; "
      "start at most {} per host for speed",
      local_ranks, cores, cores == 1 ? "core" : "cores", cores);
}

Result<std::unique_ptr<LocalRanks>> LocalRanks::make(EventLoop& loop, Orphans& orphans, HostJob job,
                                                     Guard guard, RankListener& listener,
                                                     ForkServer* loaded) {
  if (!job.interface.empty()) {
    STORMO_ASSIGN_OR_RETURN(job.interface, choose_interface(job.interface));
  }
  STORMO_RETURN_IF_ERROR(provide_descriptors(
      {.local_ranks = job.local_size, .ranks = job.size, .sockets = sockets_of(job)}));
  std::unique_ptr<LocalRanks> ranks(
      new LocalRanks(loop, orphans, std::move(job), std::move(guard), listener));
  STORMO_RETURN_IF_ERROR(ranks->prepare(loaded));
  return ranks;
}

Result<std::unique_ptr<LocalRanks>> LocalRanks::start(EventLoop& loop, Orphans& orphans,
                                                      HostJob job, Guard guard,
                                                      RankListener& listener, ForkServer* loaded) {
  STORMO_ASSIGN_OR_RETURN(auto ranks,
                          make(loop, orphans, std::move(job), std::move(guard), listener, loaded));
  const HostJob& of = ranks->job_;
  for (int local_rank = 0; local_rank < of.local_size; ++local_rank) {
    const Rank rank = of.first_rank + local_rank;
    STORMO_RETURN_IF_ERROR(
        ranks->start_rank({.rank = rank, .local_rank = local_rank, .incarnation = 1})
            .within(fmt::format("rank {} on host {}", rank, of.host)));
  }
  if (const std::string note = oversubscription_note(ranks->cpus_, of.local_size); !note.empty())
    listener.on_message(of.host, note);
  if (of.name.empty()) {  // nothing is started again
    ranks->server_ = nullptr;
    ranks->own_server_.reset();
    ranks->secret_.reset();
    return ranks;
  }
  STORMO_RETURN_IF_ERROR(ranks->await_later_starts());
  return ranks;
}

Result<std::unique_ptr<LocalRanks>> LocalRanks::stand_by(EventLoop& loop, Orphans& orphans,
                                                         HostJob job, Guard guard,
                                                         RankListener& listener) {
  STORMO_ASSIGN_OR_RETURN(auto ranks,
                          make(loop, orphans, std::move(job), std::move(guard), listener, nullptr));
  STORMO_RETURN_IF_ERROR(ranks->await_later_starts());
  return ranks;
}

Status LocalRanks::await_later_starts() {
  next_look_ = RealClock().now() + StoppedProcesses::kInterval;
  if (server_ == nullptr) return {};
  return loop_.watch_readable(server_->descriptor(), [this] { end_server(); });
}

Status LocalRanks::adopt(Rank rank, pid_t process) {
  Process& adopted = processes_.emplace_back();
  adopted.rank = rank;
  adopted.pid = process;
  adopted.is_adopted = true;
  return watch(adopted);
}

/// What all ranks have in common, also those that are started again.
Status LocalRanks::prepare(ForkServer* loaded) {
  std::erase_if(job_.environment, [](const auto& e) { return e.starts_with("STORMO_GUARD="); });
  job_.environment.push_back(guard_.mark());
  STORMO_ASSIGN_OR_RETURN(common_.file,
                          find_program(job_.program.front(), value_of(job_.environment, "PATH")));
  common_.argv = job_.program;
  common_.group = guard_.group();
  if (!job_.secret.empty()) {
    STORMO_ASSIGN_OR_RETURN(secret_, make_secret_file(job_.secret));
    common_.inherited = secret_.get();
  }
  cpus_ = read_cpus();
  // ranks of several hosts have as many threads on each
  STORMO_ASSIGN_OR_RETURN(const int given, given_threads(job_.environment));
  if (job_.cross_size == 1 && given == 0) {
    const LoadedThreads beside = threads_beside_others(cpus_, job_.local_size);
    job_.environment.push_back(fmt::format("STORMO_THREADS={}", beside.threads));
    if (!beside.note.empty()) listener_.on_message(job_.host, beside.note);
  }
  if (loaded == nullptr && loads_program_once(job_))
    own_server_ = load_program(job_, common_.file, common_.group, cpus_);
  server_ = own_server_ != nullptr ? own_server_.get() : loaded;
  return {};
}

void LocalRanks::start_later(const LaterStart& start) {
  const bool is_further = start.local_rank >= job_.local_size;
  if (is_further ? start.rank < job_.size : start.rank != job_.first_rank + start.local_rank) {
    return listener_.on_not_started(start.rank, invalid_argument("it is a rank of another host"));
  }
  finish_output(start.rank);
  Status started;
  if (is_further) {
    started = provide_descriptors({.local_ranks = start.local_rank + 1,
                                   .ranks = start.rank + 1,
                                   .sockets = sockets_of(job_)});
  }
  if (started.ok()) started = start_rank(start);
  if (!started.ok()) listener_.on_not_started(start.rank, started);
}

void LocalRanks::ask_to_leave(Rank rank) {
  for (const Process& p : processes_)
    if (p.rank == rank && !p.gone) ::sigqueue(p.pid, SIGTERM, {.sival_int = protocol::kLeaveMark});
}

/// As if it had begun with this rank.
HostJob LocalRanks::job_with(const LaterStart& start) const {
  HostJob job = job_;
  job.first_rank = start.rank - start.local_rank;
  job.local_size = std::max({job.local_size, job.later_size, start.local_rank + 1});
  job.size = std::max(job.size, start.rank + 1);
  return job;
}

/// What the process before has said comes before the first word of the next one.
void LocalRanks::finish_output(Rank rank) {
  for (Output& output : outputs_)
    if (output.rank == rank) finish(output);
}

/// All that the pipe holds, whose writer has ended.
void LocalRanks::finish(Output& output) {
  pollfd p{output.fd.get(), POLLIN, 0};
  for (int i = 0; i < kReadsOfPipe && output.fd.valid() && ::poll(&p, 1, 0) > 0; ++i)
    read_output(output);
  if (output.fd.valid()) close_output(output);  // a child of that process holds the other end
}

/// `is_first`: of its rank. Then a server that fails is an error: nothing is lost yet.
Result<pid_t> LocalRanks::spawn_rank(const Child& child, bool is_first) {
  if (server_ == nullptr) return spawn(child);
  const Result<pid_t> forked = server_->spawn(child);
  const Code code = forked.status().code();
  const bool is_gone = code == Code::kPeerLost || code == Code::kDeadlineExceeded;
  if (is_first || !is_gone) return forked;
  end_server();
  return spawn(child);
}

void LocalRanks::end_server() {
  if (server_ == nullptr) return;
  loop_.forget(server_->descriptor());
  std::exchange(server_, nullptr)->end();
}

Status LocalRanks::start_rank(const LaterStart& start) {
  const Rank rank = start.rank;
  const HostJob job = job_with(start);
  Child child = common_;
  child.environment =
      rank_environment(job, start.local_rank, cpus_, secret_.get(), start.incarnation);
  child.cpus =
      bind_ranks(cpus_, job.local_size, job.bind)[static_cast<std::size_t>(start.local_rank)];

  // Only a terminal is handed on: a reader of a pipe that is slow or gone must not hurt the rank.
  const auto inherits = [&](int fd) {
    return rank == 0 && job_.rank0_inherits_output && ::isatty(fd) != 0;
  };
  Pipe out;
  Pipe err;
  if (!inherits(STDOUT_FILENO)) {
    STORMO_ASSIGN_OR_RETURN(out, make_pipe());
    child.output = out.write.get();
  }
  if (!inherits(STDERR_FILENO)) {
    STORMO_ASSIGN_OR_RETURN(err, make_pipe());
    child.error = err.write.get();
  }
  const Result<pid_t> pid = spawn_rank(child, start.incarnation == 1);
  if (!pid.ok()) return pid.status();
  Process& process = processes_.emplace_back();
  process.rank = rank;
  process.pid = *pid;
  Status watched = watch(process);
  if (watched.ok() && out.read.valid())
    watched = watch_output(rank, Stream::kOutput, std::move(out.read));
  if (watched.ok() && err.read.valid())
    watched = watch_output(rank, Stream::kError, std::move(err.read));
  if (!watched.ok()) {
    abandon(process);
    return watched;
  }
  listener_.on_started(rank, *pid);
  return {};
}

Status LocalRanks::watch(Process& process) {
  STORMO_ASSIGN_OR_RETURN(process.pidfd, open_process(process.pid));
  return loop_.watch_readable(process.pidfd.get(), [this, &process] { reap(process); });
}

/// One that nobody has been told of.
void LocalRanks::abandon(Process& process) {
  ::kill(process.pid, SIGKILL);
  ::waitpid(process.pid, nullptr, 0);
  note_gone(process);
}

void LocalRanks::note_gone(Process& process) {
  process.gone = true;
  forget_child(process.pid);
  stopped_.forget(process.pid);
  if (process.pidfd.valid()) loop_.forget(process.pidfd.get());
  process.pidfd.reset();
}

Status LocalRanks::watch_output(Rank rank, Stream stream, Descriptor fd) {
  // Only this end: the program's own standard output stays blocking.
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  Output& output = outputs_.emplace_back();
  output.rank = rank;
  output.stream = stream;
  output.fd = std::move(fd);
  STORMO_RETURN_IF_ERROR(
      loop_.watch_readable(output.fd.get(), [this, &output] { read_output(output); }));
  if (paused_) loop_.pause(output.fd.get(), true);
  return {};
}

LocalRanks::~LocalRanks() {
  kill_ranks(Deadline::after(kDying));
  for (Process& p : processes_) {
    if (p.pidfd.valid()) loop_.forget(p.pidfd.get());
    // One that hangs in the kernel is not waited for.
    if (!p.gone && ::waitpid(p.pid, nullptr, WNOHANG) == p.pid) forget_child(p.pid);
  }
  for (Output& o : outputs_)
    if (o.fd.valid()) loop_.forget(o.fd.get());
  if (server_ != nullptr) loop_.forget(server_->descriptor());
}

void LocalRanks::send_signal(int signal) {
  if (signal != SIGKILL) guard_.signal(signal);
  // The guard must outlive the ranks' exit reports, so the group is not killed as a whole here.
  for (const Process& p : processes_)
    if (!p.gone && (signal == SIGKILL || p.is_adopted)) ::kill(p.pid, signal);
}

void LocalRanks::tick(TimePoint now) {
  if (now < next_look_) return;
  next_look_ = now + StoppedProcesses::kInterval;
  for (const Process& p : processes_) {
    if (p.gone || !stopped_.is_stopped_too_long(p.pid)) continue;
    listener_.on_message(
        job_.host, fmt::format("rank {} (pid {}) has been stopped for {}: it is ended", p.rank,
                               p.pid, format_duration(job_.longest_stop)));
    stopped_.forget(p.pid);  // it is said once
    ::kill(p.pid, SIGKILL);
  }
}

void LocalRanks::pause_output(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  for (const Output& o : outputs_)
    if (o.fd.valid()) loop_.pause(o.fd.get(), paused);
}

void LocalRanks::read_output(Output& output) {
  std::array<char, kReadBytes> buffer;
  const ssize_t n = ::read(output.fd.get(), buffer.data(), buffer.size());
  if (n > 0)
    listener_.on_output(output.rank, output.stream, {buffer.data(), static_cast<std::size_t>(n)});
  else if (n == 0 || (errno != EAGAIN && errno != EINTR))
    close_output(output);
}

void LocalRanks::close_output(Output& output) {
  loop_.forget(output.fd.get());
  output.fd.reset();
  listener_.on_output_end(output.rank, output.stream);
}

void LocalRanks::reap(Process& process) {
  siginfo_t info{};
  if (::waitid(P_PIDFD, static_cast<id_t>(process.pidfd.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return;
  note_gone(process);
  if (info.si_code == CLD_EXITED)
    listener_.on_exited(process.rank, info.si_status);
  else
    listener_.on_signalled(process.rank, info.si_status,
                           info.si_status == SIGKILL ? memory_.why_killed() : std::string());
}

/// Each of them, too: one may have left the group (setsid).
void LocalRanks::kill_ranks(Deadline by) {
  send_signal(SIGKILL);
  guard_.kill_all();
  for (const Process& process : processes_)
    if (!process.gone) wait_readable(process.pidfd, by);
}

/// Ranks first: what they have started is then an orphan.
void LocalRanks::end_processes(Deadline by) {
  kill_ranks(by);
  for (const pid_t pid : orphans_.end(by))
    listener_.on_message(job_.host,
                         fmt::format("process {}, which a rank has started, does not end "
                                     "when it is killed; it may belong to another user",
                                     pid));
}

void LocalRanks::end(Deadline by) {
  end_processes(by);
  for (Output& output : outputs_) finish(output);
}

}  // namespace stormo::launch
