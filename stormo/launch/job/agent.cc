#include <stormo/launch/job/agent.h>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include <stormo/base/version.h>
#include <stormo/launch/job/frames.h>
#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/transport/net/tls_setting.h>

namespace stormo::launch {
namespace {

/// A description holds an environment, which the kernel bounds far below this.
constexpr std::size_t kMaxDescription = 16u << 20;
constexpr Duration kLastOutputTime = std::chrono::seconds(1);

class Agent final : public RankListener {
 public:
  Agent(EventLoop& loop, Orphans& orphans, Guard guard)
      : loop_(loop), orphans_(orphans), guard_(std::move(guard)), out_(loop, STDOUT_FILENO) {}

  Status run() {
    tell({AgentEvent::kHello, 0, 0, kVersion});
    STORMO_RETURN_IF_ERROR(loop_.watch_readable(STDIN_FILENO, [this] { read_input(); }));
    while (!input_ended_) {
      STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::never()));
      if (ranks_) ranks_->pause_output(out_.pending() > Frame::kMaxPayload);
    }
    if (ranks_) ranks_->end(Deadline::after(kLastOutputTime));
    return {};
  }

  void on_started(Rank rank, pid_t pid) override { tell({AgentEvent::kStarted, rank, pid, {}}); }
  void on_not_started(Rank rank, const Status& why) override {
    tell({AgentEvent::kNotStarted, rank, 0, why.message()});
  }
  void on_output(Rank rank, Stream stream, std::string_view bytes) override {
    tell({AgentEvent::kOutput, rank, number(stream), std::string(bytes)});
  }
  void on_output_end(Rank rank, Stream stream) override {
    tell({AgentEvent::kClosed, rank, number(stream), {}});
  }
  void on_exited(Rank rank, int code) override { tell({AgentEvent::kExited, rank, code, {}}); }
  void on_signalled(Rank rank, int signal, std::string_view why) override {
    tell({AgentEvent::kSignalled, rank, signal, std::string(why)});
  }
  void on_message(std::string_view, std::string_view text) override {
    tell({AgentEvent::kMessage, 0, 0, std::string(text)});
  }
  void on_host_lost(int, std::string_view) override {}

 private:
  static int number(Stream stream) { return stream == Stream::kOutput ? 1 : 2; }
  void tell(const Frame& frame) { out_.push(to_bytes(frame)); }

  void read_input() {
    std::array<char, 64 * 1024> buffer;
    const ssize_t n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) return end_input();
    input_.append({buffer.data(), static_cast<std::size_t>(n)});
    for (;;) {
      const auto message = input_.next();
      if (!message.ok()) {  // nothing after it can be read
        refuse(message.status());
        return end_input();
      }
      if (!*message) return;
      take(**message);
    }
  }

  void end_input() {
    loop_.forget(STDIN_FILENO);
    input_ended_ = true;
  }

  void take(std::string_view message) {
    if (guard_) {
      if (const Status status = start(message); !status.ok()) refuse(status);
    } else if (const auto order = transport::decode<AgentOrder>("agent", message); !order.ok()) {
      refuse(order.status());
    } else if (ranks_ && order->task == AgentTask::kStart) {
      ranks_->start_later({order->rank, order->local_rank, order->value});
    } else if (ranks_ && order->task == AgentTask::kLeave) {
      ranks_->ask_to_leave(order->rank);
    } else if (ranks_) {
      ranks_->send_signal(order->value);
    }
  }

  void refuse(const Status& why) { tell({AgentEvent::kRefused, 0, 0, why.message()}); }

  Status start(std::string_view description) {
    Guard guard = std::move(*guard_);
    guard_.reset();
    STORMO_ASSIGN_OR_RETURN(const HostJob job, decode_host_job(description));
    // what this process connects to others is as its ranks do
    const std::string_view tls = value_of(job.environment, transport::kTlsVariable);
    if (!tls.empty()) STORMO_RETURN_IF_ERROR(transport::use_tls_setting(tls));
    if (::chdir(job.directory.c_str()) != 0)
      return errno_error(fmt::format("working directory '{}'", job.directory));
    STORMO_ASSIGN_OR_RETURN(ranks_,
                            LocalRanks::start(loop_, orphans_, job, std::move(guard), *this));
    return job.name.empty() ? Status() : await_notice();
  }

  /// An elastic job does without this host: SIGTERM says that it is taken away soon. A second one
  /// ends this process.
  Status await_notice() {
    sigset_t notice;
    ::sigemptyset(&notice);
    ::sigaddset(&notice, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &notice, nullptr);
    notice_ = transport::Descriptor(::signalfd(-1, &notice, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!notice_.valid()) return errno_error("signalfd");
    return loop_.watch_readable(notice_.get(), [this, notice] {
      signalfd_siginfo info{};
      if (::read(notice_.get(), &info, sizeof info) != sizeof info) return;
      loop_.forget(notice_.get());
      notice_.reset();
      ::pthread_sigmask(SIG_UNBLOCK, &notice, nullptr);
      tell({AgentEvent::kLeaves, 0, 0, {}});
    });
  }

  EventLoop& loop_;
  Orphans& orphans_;
  std::optional<Guard> guard_;  ///< until it is handed to the ranks
  OutputQueue out_;
  std::unique_ptr<LocalRanks> ranks_;
  transport::FrameSplitter input_{"launcher", kMaxDescription};
  bool input_ended_ = false;
  transport::Descriptor notice_;  ///< of SIGTERM, until there was one
};

}  // namespace

Result<int> run_agent() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::create());
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<Orphans> orphans, Orphans::adopt(*loop));
  STORMO_ASSIGN_OR_RETURN(Guard guard, Guard::start());
  Agent agent(*loop, *orphans, std::move(guard));
  STORMO_RETURN_IF_ERROR(agent.run());
  return 0;
}

}  // namespace stormo::launch
