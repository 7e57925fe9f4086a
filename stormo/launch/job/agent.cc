#include <stormo/launch/job/agent.h>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/version.h>
#include <stormo/launch/job/keeper.h>
#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/messages/frames.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/launch/register/job_register.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/net/tls_setting.h>
#include <stormo/transport/store/store_address.h>

namespace stormo::launch {
namespace {

/// A description holds an environment, which the kernel bounds far below this.
constexpr std::size_t kMaxDescription = 16u << 20;
constexpr Duration kLastOutputTime = std::chrono::seconds(1);

/// By which other hosts reach this one: that of the interface, or the one from which the launcher's
/// Store is reached.
Result<std::string> own_address(const HostJob& job) {
  if (!job.interface.empty()) {
    STORMO_ASSIGN_OR_RETURN(const std::string interface, choose_interface(job.interface));
    return transport::interface_address(interface);
  }
  return transport::source_address_to(job.store);
}

class Agent final : public RankListener {
 public:
  Agent(EventLoop& loop, Orphans& orphans, Guard guard, KeeperLink keeper)
      : loop_(loop),
        orphans_(orphans),
        guard_(std::move(guard)),
        out_(loop, STDOUT_FILENO),
        keeper_(std::move(keeper)) {}

  Status run() {
    tell({AgentEvent::kHello, 0, 0, kVersion});
    STORMO_RETURN_IF_ERROR(loop_.watch_readable(STDIN_FILENO, [this] { read_input(); }));
    while (!input_ended_) {
      const TimePoint wake = ranks_ ? ranks_->wakes_at() : TimePoint::max();
      STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::at(wake)));
      if (!ranks_) continue;
      ranks_->tick(RealClock().now());
      ranks_->pause_output(out_.pending() > Frame::kMaxPayload);
    }
    if (!ranks_) return {};
    if (leaves_ranks_ && !end_is_ordered_) {
      // their destructors would end them
      [[maybe_unused]] static const std::pair left(ranks_.release(), register_.release());
    } else {
      ranks_->end(Deadline::after(kLastOutputTime));
    }
    return drain();
  }

  void on_started(Rank rank, pid_t pid) override {
    keeper_.started(rank, pid);
    tell({AgentEvent::kStarted, rank, pid, {}});
  }
  void on_not_started(Rank rank, const Status& why) override {
    tell({AgentEvent::kNotStarted, rank, 0, why.message()});
  }
  void on_output(Rank rank, Stream stream, std::string_view bytes) override {
    tell({AgentEvent::kOutput, rank, number(stream), std::string(bytes)});
  }
  void on_output_end(Rank rank, Stream stream) override {
    tell({AgentEvent::kClosed, rank, number(stream), {}});
  }
  void on_exited(Rank rank, int code) override {
    keeper_.exited(rank, code);
    tell({AgentEvent::kExited, rank, code, {}});
  }
  void on_signalled(Rank rank, int signal, std::string_view why) override {
    keeper_.signalled(rank, signal);
    tell({AgentEvent::kSignalled, rank, signal, std::string(why)});
  }
  void on_message(std::string_view, std::string_view text) override {
    tell({AgentEvent::kMessage, 0, 0, std::string(text)});
  }
  void on_host_lost(int, std::string_view) override {}
  void on_acceptor(int, std::string_view) override {}

 private:
  static int number(Stream stream) { return stream == Stream::kOutput ? 1 : 2; }
  void tell(const Frame& frame) { out_.push(to_bytes(frame)); }

  /// The launcher reads what is left, or nothing for some time.
  Status drain() {
    Deadline by = Deadline::after(kLastOutputTime);
    while (out_.pending() > 0 && !by.expired()) {
      const std::size_t before = out_.pending();
      STORMO_RETURN_IF_ERROR(loop_.run_once(by));
      if (out_.pending() != before) by = Deadline::after(kLastOutputTime);
    }
    return {};
  }

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
      if (const Status status = take_job(message); !status.ok()) refuse(status);
    } else if (const auto order = transport::decode<AgentOrder>("agent", message); !order.ok()) {
      refuse(order.status());
    } else if (order->task == AgentTask::kEnd) {
      end_is_ordered_ = true;
      keeper_.end();
    } else if (order->task == AgentTask::kBegin) {
      if (const Status status = begin(order->text); !status.ok()) refuse(status);
    } else if (ranks_ && order->task == AgentTask::kStart) {
      const LaterStart start{order->rank, order->local_rank, order->value};
      keeper_.starts(start);
      ranks_->start_later(start);
    } else if (ranks_ && order->task == AgentTask::kLeave) {
      ranks_->ask_to_leave(order->rank);
    } else if (ranks_) {
      ranks_->send_signal(order->value);
    }
  }

  void refuse(const Status& why) { tell({AgentEvent::kRefused, 0, 0, why.message()}); }

  Status take_job(std::string_view description) {
    waiting_.emplace(Waiting{.guard = std::move(*guard_), .job = {}});
    guard_.reset();
    HostJob& job = waiting_->job;
    STORMO_ASSIGN_OR_RETURN(job, decode_host_job(description));
    leaves_ranks_ = outlives_launcher(job);
    // what this process connects to others is as its ranks do
    const std::string_view tls = value_of(job.environment, transport::kTlsVariable);
    if (!tls.empty()) STORMO_RETURN_IF_ERROR(transport::use_tls_setting(tls));
    if (::chdir(job.directory.c_str()) != 0)
      return errno_error(fmt::format("working directory '{}'", job.directory));
    if (job.acceptor >= 0) STORMO_RETURN_IF_ERROR(start_acceptor(job));
    const bool knows_register = job.name.empty() || !job.register_address.empty();
    return knows_register ? start_ranks() : Status();
  }

  Status start_acceptor(const HostJob& job) {
    STORMO_ASSIGN_OR_RETURN(const std::string host, own_address(job));
    STORMO_ASSIGN_OR_RETURN(register_, JobRegister::start());
    STORMO_ASSIGN_OR_RETURN(const std::string address, register_->serve({.job = job.name,
                                                                         .index = job.acceptor,
                                                                         .count = job.acceptors,
                                                                         .host = host,
                                                                         .ports = job.ports,
                                                                         .secret = job.secret}));
    tell({AgentEvent::kAcceptor, 0, 0, address});
    return loop_.watch_readable(register_->descriptor(), [this] { read_register(); });
  }

  void read_register() {
    const std::vector<std::string> lines = register_->lines();
    for (const std::string& line : lines) tell({AgentEvent::kMessage, 0, 0, line});
    if (lines.empty()) loop_.forget(register_->descriptor());  // it has ended
  }

  Status begin(const std::string& register_address) {
    if (!waiting_ || register_address.empty()) return {};
    waiting_->job.register_address = register_address;
    return start_ranks();
  }

  Status start_ranks() {
    Waiting waiting = *std::move(waiting_);
    const bool is_elastic = !waiting.job.name.empty();
    waiting_.reset();
    if (is_elastic) keeper_.begin(waiting.job);
    STORMO_ASSIGN_OR_RETURN(ranks_, LocalRanks::start(loop_, orphans_, std::move(waiting.job),
                                                      std::move(waiting.guard), *this));
    return is_elastic ? await_notice() : Status();
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
    STORMO_RETURN_IF_ERROR(loop_.watch_readable(keeper_.descriptor(), [this] {
      loop_.forget(keeper_.descriptor());
      char byte = 0;
      if (::recv(keeper_.descriptor(), &byte, 1, MSG_DONTWAIT) == 1) leave();
    }));
    return loop_.watch_readable(notice_.get(), [this, notice] {
      signalfd_siginfo info{};
      if (::read(notice_.get(), &info, sizeof info) != sizeof info) return;
      loop_.forget(notice_.get());
      notice_.reset();
      ::pthread_sigmask(SIG_UNBLOCK, &notice, nullptr);
      leave();
    });
  }

  void leave() {
    if (!std::exchange(leaves_, true)) tell({AgentEvent::kLeaves, 0, 0, {}});
  }

  EventLoop& loop_;
  Orphans& orphans_;
  /// A job whose ranks are not started yet.
  struct Waiting {
    Guard guard;
    HostJob job;
  };

  std::optional<Guard> guard_;  ///< until there is a job
  std::optional<Waiting> waiting_;
  OutputQueue out_;
  KeeperLink keeper_;
  std::unique_ptr<JobRegister> register_;  ///< this host's acceptor
  std::unique_ptr<LocalRanks> ranks_;
  transport::FrameSplitter input_{"launcher", kMaxDescription};
  bool input_ended_ = false;
  bool leaves_ranks_ = false;  ///< when the launcher is lost
  bool end_is_ordered_ = false;
  transport::Descriptor notice_;  ///< of SIGTERM, until there was one
  bool leaves_ = false;           ///< the launcher was told that the host is taken away
};

}  // namespace

Result<int> run_agent() {
  return with_keeper([](KeeperLink keeper) -> Result<int> {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGCHLD, SIG_DFL);
    STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::create());
    STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<Orphans> orphans, Orphans::adopt(*loop));
    STORMO_ASSIGN_OR_RETURN(Guard guard, Guard::start());
    Agent agent(*loop, *orphans, std::move(guard), std::move(keeper));
    STORMO_RETURN_IF_ERROR(agent.run());
    return 0;
  });
}

}  // namespace stormo::launch
