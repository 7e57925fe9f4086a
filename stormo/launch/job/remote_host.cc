#include <stormo/launch/job/remote_host.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include <stormo/base/version.h>
#include <stormo/launch/process/orphans.h>

namespace stormo::launch {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(60);
/// A shell that has closed its output is about to end; its exit status explains the loss.
constexpr Duration kShellExitTime = std::chrono::milliseconds(500);
constexpr int kLongestWaitMs = 60'000;
/// Between two parts of the output that it passes on at the end.
constexpr Duration kOutputTime = std::chrono::seconds(1);
constexpr int kReadMs = 10;

/// Waits for `pid` until `by`, a minute at most; its status word, or -1.
int wait_for(pid_t pid, Deadline by) {
  const Result<Descriptor> process = open_process(pid);
  if (!process.ok()) return -1;
  pollfd p{process->get(), POLLIN, 0};
  ::poll(&p, 1, transport::poll_timeout(RealClock().now(), by.when(), kLongestWaitMs));
  int status = 0;
  if (::waitpid(pid, &status, WNOHANG) != pid) return -1;
  forget_child(pid);
  return status;
}

}  // namespace

RemoteHost::RemoteHost(EventLoop& loop, const HostJob& job, RankListener& listener)
    : loop_(loop),
      listener_(listener),
      host_(job.host),
      cross_rank_(job.cross_rank),
      first_rank_(job.first_rank),
      local_size_(job.local_size),
      answers_by_(Deadline::after(kAnswerTime).when()) {}

Result<std::unique_ptr<RemoteHost>> RemoteHost::start(EventLoop& loop, const HostJob& job,
                                                      const std::vector<std::string>& command,
                                                      const std::vector<std::string>& environment,
                                                      RankListener& listener) {
  std::unique_ptr<RemoteHost> remote(new RemoteHost(loop, job, listener));
  RemoteHost* self = remote.get();
  STORMO_ASSIGN_OR_RETURN(Pipe in, make_pipe());
  STORMO_ASSIGN_OR_RETURN(Pipe out, make_pipe());
  STORMO_ASSIGN_OR_RETURN(Pipe err, make_pipe());
  Child shell;
  STORMO_ASSIGN_OR_RETURN(
      shell.file, find_program(command.front(), absolute_folders(value_of(environment, "PATH"))));
  shell.argv = command;
  shell.environment = environment;
  shell.environment.emplace_back(kSparedMark);
  shell.input = in.read.get();
  shell.output = out.write.get();
  shell.error = err.write.get();
  STORMO_ASSIGN_OR_RETURN(self->shell_, spawn(shell));
  self->input_ = std::move(in.write);
  self->output_ = std::move(out.read);
  self->errors_ = std::move(err.read);
  ::fcntl(self->output_.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(self->errors_.get(), F_SETFL, O_NONBLOCK);
  STORMO_RETURN_IF_ERROR(loop.watch_readable(self->output_.get(), [self] { self->read_frames(); }));
  STORMO_RETURN_IF_ERROR(loop.watch_readable(self->errors_.get(), [self] { self->read_errors(); }));
  self->requests_ = std::make_unique<OutputQueue>(loop, self->input_.get());
  self->requests_->push(transport::frame(encode(job)));
  return remote;
}

RemoteHost::~RemoteHost() { end(Deadline::after(Duration::zero())); }

void RemoteHost::order(const AgentOrder& order) {
  if (requests_ != nullptr) requests_->push(transport::frame(transport::encode(order)));
}

void RemoteHost::begin(const std::string& register_address) {
  order({.task = AgentTask::kBegin, .value = 1, .text = register_address});
}

void RemoteHost::send_signal(int signal) { order({.value = signal}); }

void RemoteHost::start_later(const LaterStart& start) {
  if (!owns(start.rank)) added_.insert(start.rank);
  order({.task = AgentTask::kStart,
         .value = start.incarnation,
         .rank = start.rank,
         .local_rank = start.local_rank});
}

void RemoteHost::ask_to_leave(Rank rank) {
  order({.task = AgentTask::kLeave, .value = 1, .rank = rank});
}

bool RemoteHost::owns(Rank rank) const {
  return (rank >= first_rank_ && rank < first_rank_ + local_size_) || added_.contains(rank);
}

void RemoteHost::pause_output(bool paused) {
  if (paused == paused_ || !output_.valid()) return;
  paused_ = paused;
  loop_.pause(output_.get(), paused);
}

void RemoteHost::tick(TimePoint now) {
  if (now >= answers_by_)
    lose(
        fmt::format("no answer within {} s; check that the remote shell works without a password "
                    "and that this program lies at the same path there",
                    std::chrono::duration_cast<std::chrono::seconds>(kAnswerTime).count()));
}

void RemoteHost::read_frames() {
  std::array<char, 64 * 1024> buffer;
  const ssize_t n = ::read(output_.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return lose(how_it_ended());
  const Status status = frames_.feed(
      {buffer.data(), static_cast<std::size_t>(n)}, [this](const Frame& f) { take(f); },
      [this](std::string_view line) { listener_.on_message(host_, line); });
  if (!status.ok()) lose(status.message());
}

void RemoteHost::read_errors() {
  std::array<char, 4096> buffer;
  const ssize_t n = ::read(errors_.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const auto line = [this](std::string_view text) {
    last_error_ = text;
    listener_.on_message(host_, text);
  };
  if (n > 0) return error_lines_.feed({buffer.data(), static_cast<std::size_t>(n)}, line);
  error_lines_.finish(line);
  loop_.forget(errors_.get());
  errors_.reset();
}

void RemoteHost::take(const Frame& frame) {
  if (lost_) return;
  const Stream stream = frame.value == 2 ? Stream::kError : Stream::kOutput;
  const bool is_of_rank =
      (frame.event >= AgentEvent::kStarted && frame.event <= AgentEvent::kSignalled) ||
      frame.event == AgentEvent::kNotStarted;
  if (is_of_rank && !owns(frame.rank)) {
    return lose(fmt::format("speaks for rank {}, which it does not have", frame.rank));
  }
  switch (frame.event) {
    case AgentEvent::kHello:
      answers_by_ = TimePoint::max();
      if (frame.payload == kVersion) return;
      return lose(
          fmt::format("runs version {} of this program, the launcher {}; install the same on all "
                      "hosts",
                      frame.payload, kVersion));
    case AgentEvent::kRefused: return lose(frame.payload);
    case AgentEvent::kMessage: return listener_.on_message(host_, frame.payload);
    case AgentEvent::kAcceptor: return listener_.on_acceptor(cross_rank_, frame.payload);
    case AgentEvent::kStarted: return listener_.on_started(frame.rank, frame.value);
    case AgentEvent::kNotStarted:
      return listener_.on_not_started(frame.rank, Status(Code::kIo, frame.payload));
    case AgentEvent::kOutput: return listener_.on_output(frame.rank, stream, frame.payload);
    case AgentEvent::kClosed: return listener_.on_output_end(frame.rank, stream);
    case AgentEvent::kExited: return listener_.on_exited(frame.rank, frame.value);
    case AgentEvent::kLeaves: return listener_.on_host_leaves(cross_rank_);
    case AgentEvent::kSignalled:
      return listener_.on_signalled(frame.rank, frame.value, frame.payload);
  }
}

std::string RemoteHost::how_it_ended() {
  const int status = wait_for(shell_, Deadline::after(kShellExitTime));
  while (errors_.valid()) {
    pollfd p{errors_.get(), POLLIN, 0};
    if (::poll(&p, 1, 0) <= 0) break;
    read_errors();
  }
  std::string text = "the remote shell closed the connection";
  if (status != -1) {
    shell_ = 0;
    text = WIFEXITED(status)
               ? fmt::format("the remote shell ended with exit status {}", WEXITSTATUS(status))
               : fmt::format("the remote shell was killed by signal {}", WTERMSIG(status));
  }
  return last_error_.empty() ? text : fmt::format("{}: {}", text, last_error_);
}

void RemoteHost::lose(std::string_view reason) {
  if (lost_) return;
  lost_ = true;
  answers_by_ = TimePoint::max();
  loop_.forget(output_.get());
  order({.task = AgentTask::kEnd, .value = 1});
  requests_.reset();
  input_.reset();
  listener_.on_host_lost(cross_rank_, reason);
}

// The end of its input makes the agent end its ranks, then itself. Without the order that of an
// elastic job would take it for the loss of the launcher.
void RemoteHost::begin_end() {
  order({.task = AgentTask::kEnd, .value = 1});
  requests_.reset();
  input_.reset();
}

void RemoteHost::end(Deadline by) {
  begin_end();
  for (Deadline next = by; output_.valid() && !lost_;) {
    pollfd p{output_.get(), POLLIN, 0};
    if (::poll(&p, 1, kReadMs) > 0) {
      read_frames();
      next = Deadline::at(std::max(by.when(), Deadline::after(kOutputTime).when()));
    } else if (next.expired()) {
      break;
    }
  }
  if (output_.valid()) loop_.forget(output_.get());
  if (errors_.valid()) loop_.forget(errors_.get());
  output_.reset();
  errors_.reset();
  if (shell_ <= 0) return;
  if (wait_for(shell_, by) == -1) {
    ::kill(-shell_, SIGKILL);  // it leads its own session
    ::waitpid(shell_, nullptr, 0);
    forget_child(shell_);
  }
  shell_ = 0;
}

}  // namespace stormo::launch
