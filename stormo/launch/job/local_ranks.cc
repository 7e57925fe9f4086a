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

#include <stormo/launch/network.h>
#include <stormo/launch/process/descriptors.h>
#include <stormo/launch/process/other_load.h>
#include <stormo/launch/secret_file.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::launch {
namespace {

/// Read per wake-up and stream: enough for speed, little enough that no rank starves the others.
constexpr std::size_t kReadBytes = 64 * 1024;
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

Result<std::unique_ptr<LocalRanks>> LocalRanks::start(EventLoop& loop, Orphans& orphans,
                                                      HostJob job, Guard guard,
                                                      RankListener& listener, ForkServer* loaded) {
  if (!job.interface.empty()) {
    STORMO_ASSIGN_OR_RETURN(job.interface, choose_interface(job.interface));
  }
  STORMO_RETURN_IF_ERROR(provide_descriptors(
      {.local_ranks = job.local_size, .ranks = job.size, .sockets = sockets_of(job)}));
  std::unique_ptr<LocalRanks> ranks(new LocalRanks(loop, orphans, std::move(guard), listener));
  ranks->host_ = job.host;
  std::erase_if(job.environment, [](const auto& e) { return e.starts_with("STORMO_JOB="); });
  job.environment.push_back(ranks->guard_.mark());
  Child common;
  STORMO_ASSIGN_OR_RETURN(common.file,
                          find_program(job.program.front(), value_of(job.environment, "PATH")));
  common.argv = job.program;
  common.group = ranks->guard_.group();

  Descriptor secret;
  if (!job.secret.empty()) {
    STORMO_ASSIGN_OR_RETURN(secret, make_secret_file(job.secret));
    common.inherited = secret.get();
  }
  const Cpus cpus = read_cpus();
  // ranks of several hosts have as many threads on each
  STORMO_ASSIGN_OR_RETURN(const int given, given_threads(job.environment));
  if (job.cross_size == 1 && given == 0) {
    const LoadedThreads beside = threads_beside_others(cpus, job.local_size);
    job.environment.push_back(fmt::format("STORMO_THREADS={}", beside.threads));
    if (!beside.note.empty()) listener.on_message(job.host, beside.note);
  }
  std::unique_ptr<ForkServer> own;
  if (loaded == nullptr && loads_program_once(job))
    own = load_program(job, common.file, common.group, cpus);
  ForkServer* const server = own != nullptr ? own.get() : loaded;
  for (int local_rank = 0; local_rank < job.local_size; ++local_rank)
    STORMO_RETURN_IF_ERROR(ranks->start_rank(job, local_rank, common, cpus, secret.get(), server));
  if (const std::string note = oversubscription_note(cpus, job.local_size); !note.empty())
    listener.on_message(job.host, note);
  return ranks;
}

Status LocalRanks::start_rank(const HostJob& job, int local_rank, const Child& common,
                              const Cpus& cpus, int secret_fd, ForkServer* server) {
  const Rank rank = job.first_rank + local_rank;
  Child child = common;
  child.environment = rank_environment(job, local_rank, cpus, secret_fd);
  child.cpus = bind_ranks(cpus, job.local_size, job.bind)[static_cast<std::size_t>(local_rank)];

  // Only a terminal is handed on: a reader of a pipe that is slow or gone must not hurt the rank.
  const auto inherits = [&](int fd) {
    return rank == 0 && job.rank0_inherits_output && ::isatty(fd) != 0;
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
  const Result<pid_t> pid = server != nullptr ? server->spawn(child) : spawn(child);
  if (!pid.ok()) return pid.status().within(fmt::format("rank {} on host {}", rank, job.host));
  Process& process = processes_.emplace_back();
  process.rank = rank;
  process.pid = *pid;
  STORMO_ASSIGN_OR_RETURN(process.pidfd, open_process(*pid));
  STORMO_RETURN_IF_ERROR(
      loop_.watch_readable(process.pidfd.get(), [this, &process] { reap(process); }));
  listener_.on_started(rank, *pid);
  if (out.read.valid())
    STORMO_RETURN_IF_ERROR(watch_output(rank, Stream::kOutput, std::move(out.read)));
  return err.read.valid() ? watch_output(rank, Stream::kError, std::move(err.read)) : Status{};
}

Status LocalRanks::watch_output(Rank rank, Stream stream, Descriptor fd) {
  // Only this end: the program's own standard output stays blocking.
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  Output& output = outputs_.emplace_back();
  output.rank = rank;
  output.stream = stream;
  output.fd = std::move(fd);
  return loop_.watch_readable(output.fd.get(), [this, &output] { read_output(output); });
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
}

void LocalRanks::send_signal(int signal) {
  if (signal != SIGKILL) return guard_.signal(signal);
  // The guard must outlive the ranks' exit reports, so the group is not killed as a whole here.
  for (const Process& p : processes_)
    if (!p.gone) ::kill(p.pid, SIGKILL);
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
  process.gone = true;
  forget_child(process.pid);
  loop_.forget(process.pidfd.get());
  process.pidfd.reset();
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
    listener_.on_message(host_, fmt::format("process {}, which a rank has started, does not end "
                                            "when it is killed; it may belong to another user",
                                            pid));
}

void LocalRanks::end(Deadline by) {
  end_processes(by);
  // What the ranks had written before they ended is still in the pipes.
  for (Output& output : outputs_) {
    while (output.fd.valid() && !by.expired())
      if (wait_readable(output.fd, by)) read_output(output);
  }
}

}  // namespace stormo::launch
