#include <stormo/launch/job/agent.h>

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include <stormo/base/version.h>
#include <stormo/launch/job/frames.h>
#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/process/orphans.h>

namespace stormo::launch {
namespace {

/// A description holds an environment, which the kernel bounds far below this.
constexpr std::size_t kMaxLine = 16u << 20;
constexpr Duration kLastOutputTime = std::chrono::seconds(1);

class Agent final : public RankListener {
 public:
  Agent(EventLoop& loop, Orphans& orphans, Guard guard)
      : loop_(loop), orphans_(orphans), guard_(std::move(guard)), out_(loop, STDOUT_FILENO) {}

  Status run() {
    tell({"hello", 0, 0, kVersion});
    STORMO_RETURN_IF_ERROR(loop_.watch_readable(STDIN_FILENO, [this] { read_input(); }));
    while (!input_ended_) {
      STORMO_RETURN_IF_ERROR(loop_.run_once(Deadline::never()));
      if (ranks_) ranks_->pause_output(out_.pending() > FrameReader::kMaxPayload);
    }
    if (ranks_) ranks_->end(Deadline::after(kLastOutputTime));
    return {};
  }

  void on_started(Rank rank, pid_t pid) override { tell({"started", rank, pid, {}}); }
  void on_output(Rank rank, Stream stream, std::string_view bytes) override {
    tell({"output", rank, number(stream), std::string(bytes)});
  }
  void on_output_end(Rank rank, Stream stream) override {
    tell({"closed", rank, number(stream), {}});
  }
  void on_exited(Rank rank, int code) override { tell({"exited", rank, code, {}}); }
  void on_signalled(Rank rank, int signal, std::string_view why) override {
    tell({"signalled", rank, signal, std::string(why)});
  }
  void on_message(std::string_view, std::string_view text) override {
    tell({"message", 0, 0, std::string(text)});
  }
  void on_host_lost(int, std::string_view) override {}

 private:
  static int number(Stream stream) { return stream == Stream::kOutput ? 1 : 2; }
  void tell(const Frame& frame) { out_.push(encode(frame)); }

  void read_input() {
    std::array<char, 64 * 1024> buffer;
    const ssize_t n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0 || line_.size() > kMaxLine) {
      loop_.forget(STDIN_FILENO);
      input_ended_ = true;
      return;
    }
    line_.append(buffer.data(), static_cast<std::size_t>(n));
    for (std::size_t end; (end = line_.find('\n')) != std::string::npos;) {
      const std::string line = line_.substr(0, end);
      line_.erase(0, end + 1);
      take(line);
    }
  }

  void take(const std::string& line) {
    if (!guard_) {
      if (const int signal = decode_signal(line); signal != 0 && ranks_)
        ranks_->send_signal(signal);
      return;
    }
    const Status status = start(line);
    if (!status.ok()) tell({"refused", 0, 0, status.message()});
  }

  Status start(const std::string& line) {
    Guard guard = std::move(*guard_);
    guard_.reset();
    STORMO_ASSIGN_OR_RETURN(const HostJob job, host_job_from_json(line));
    if (::chdir(job.directory.c_str()) != 0)
      return errno_error(fmt::format("working directory '{}'", job.directory));
    STORMO_ASSIGN_OR_RETURN(ranks_,
                            LocalRanks::start(loop_, orphans_, job, std::move(guard), *this));
    return {};
  }

  EventLoop& loop_;
  Orphans& orphans_;
  std::optional<Guard> guard_;  ///< until it is handed to the ranks
  OutputQueue out_;
  std::unique_ptr<LocalRanks> ranks_;
  std::string line_;
  bool input_ended_ = false;
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
