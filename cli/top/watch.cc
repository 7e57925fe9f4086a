#include <cli/top/watch.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/top/picture.h>
#include <cli/top/screen.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/printable.h>
#include <stormo/base/units.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {
namespace {

using std::chrono::steady_clock;
using Answer = Result<std::optional<observe::HttpResponse>>;

constexpr Duration kSilence = std::chrono::seconds(2);   // after which the picture says so
constexpr Duration kRenewal = std::chrono::seconds(10);  // after which it is asked again
constexpr Duration kAskAgain = std::chrono::seconds(1);  // after a question that was cut off
constexpr Duration kLastWord = std::chrono::milliseconds(500);

/// SIGINT and others, to be read while this object lives.
class TerminalSignals {
 public:
  TerminalSignals() {
    sigset_t all;
    ::sigemptyset(&all);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH}) ::sigaddset(&all, s);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
    fd_ = Descriptor(::signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~TerminalSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  TerminalSignals(const TerminalSignals&) = delete;
  TerminalSignals& operator=(const TerminalSignals&) = delete;

  int fd() const { return fd_.get(); }
  /// 0 when there is none.
  int next() const {
    signalfd_siginfo info{};
    const bool one = ::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info);
    return one ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  Descriptor fd_;
  sigset_t before_{};
};

/// A request, while it has no answer.
struct Pending {
  std::optional<observe::HttpGet> get = {};
  TimePoint since = {};

  Status start(const observe::HttpGet::Options& page, TimePoint now) {
    get.reset();
    since = now;
    STORMO_ASSIGN_OR_RETURN(observe::HttpGet begun, observe::HttpGet::start(page));
    get.emplace(std::move(begun));
    return {};
  }
  pollfd to_poll() const { return get ? pollfd{get->fd(), get->events(), 0} : pollfd{-1, 0, 0}; }
};

/// What is known of the job, and what was asked.
class Watch {
 public:
  Watch(const Target& target, JobStatus first, Duration interval)
      : target_(target), job_(std::move(first)), interval_(interval) {
    const TimePoint now = steady_clock::now();
    next_ = now + interval_;
    gone_ = end_.start(target_.page("/end"), now);
  }

  const JobStatus& job() const { return job_; }
  /// Why nothing more can be learned of the job; OK: it goes on.
  const Status& gone() const { return gone_; }
  bool is_over() const { return job_.has_ended() || !gone_.ok(); }
  TimePoint next() const { return refresh_.get ? refresh_.since + kRenewal : next_; }
  std::array<pollfd, 2> to_poll() const { return {refresh_.to_poll(), end_.to_poll()}; }

  /// As far as it goes without waiting. Whether there is something new.
  bool step(TimePoint now) {
    const bool ended = look_at_end(now);
    return look_at_refresh(now) || ended;
  }

  /// Empty, or that the job is silent.
  std::string note(TimePoint now) const {
    if (!refresh_.get || now - asked_ < kSilence) return {};
    return "no answer for " + format_duration(now - asked_) + ": is rank 0 stopped?";
  }

 private:
  void take(const observe::HttpResponse& answer) {
    Result<JobStatus> job = status_in(target_, answer);
    if (job.ok()) {
      job_ = *std::move(job);
    } else {
      gone_ = job.status();
    }
  }

  bool look_at_refresh(TimePoint now) {
    if (refresh_.get ? now >= refresh_.since + kRenewal : now >= next_) {
      if (!refresh_.get) asked_ = now;
      gone_ = refresh_.start(target_.page("/json"), now);
      next_ = now + interval_;
    }
    if (!refresh_.get) return false;
    const Answer answer = refresh_.get->step();
    if (answer.ok() && !*answer) return false;
    refresh_.get.reset();
    if (answer.ok()) {
      take(**answer);
      if (!end_.get && !is_over()) gone_ = end_.start(target_.page("/end"), now);
    } else {
      wait_for_end();
      if (!is_over()) gone_ = answer.status();
    }
    return true;
  }

  /// The page that a job answers when it ends, or after some seconds: then it is asked again.
  bool look_at_end(TimePoint now) {
    if (!end_.get) return false;
    const Answer answer = end_.get->step();
    if (answer.ok() && !*answer) return false;
    end_.get.reset();
    if (!answer.ok()) {
      next_ = std::min(next_, now + kAskAgain);  // a refresh tells why, or asks again
      return false;
    }
    take(**answer);
    if (!is_over()) gone_ = end_.start(target_.page("/end"), now);
    return true;
  }

  /// What a process that is gone had said before.
  void wait_for_end() {
    const Deadline by = Deadline::after(kLastWord);
    while (end_.get && !is_over() && !by.expired()) {
      pollfd ready = end_.to_poll();
      const TimePoint now = steady_clock::now();
      (void)::poll(&ready, 1, transport::poll_timeout(now, by.when(), 1000));
      look_at_end(now);
    }
  }

  const Target& target_;
  JobStatus job_;
  Status gone_;
  Duration interval_;
  Pending refresh_, end_;
  TimePoint asked_{}, next_{};  // when the refresh was wanted first, when the next one is
};

std::vector<std::string> picture_now(const Watch& watch, const Target& target,
                                     const Window& window) {
  return job_picture(watch.job(), target.name(), watch.note(steady_clock::now()), window);
}

/// Stops this process, as the user wants, with the terminal as it was.
void stop(const Screen& screen) {
  screen.leave();
  ::raise(SIGSTOP);
  screen.enter();
}

/// Until the job or the user ends it. The signal that did; 0: none.
int show(Watch& watch, const Target& target, Screen& screen, const TerminalSignals& signals) {
  bool is_new = true;
  while (!watch.is_over()) {
    if (is_new && !screen.draw(picture_now(watch, target, screen.window()))) return SIGHUP;
    const auto [refresh, end] = watch.to_poll();
    std::array<pollfd, 4> fds = {{{signals.fd(), POLLIN, 0},
                                  {screen.has_keys() ? STDIN_FILENO : -1, POLLIN, 0},
                                  refresh,
                                  end}};
    constexpr int kMostMs = 1000;  // a silent job is told of
    const TimePoint before = steady_clock::now();
    (void)::poll(fds.data(), fds.size(), transport::poll_timeout(before, watch.next(), kMostMs));
    const TimePoint now = steady_clock::now();
    is_new = watch.step(now) || !watch.note(now).empty();
    if ((fds[1].revents & (POLLHUP | POLLERR)) != 0) return SIGHUP;
    if (fds[1].revents != 0 && screen.reads_quit()) return SIGINT;
    while (const int signal = signals.next()) {
      if (signal == SIGTSTP) stop(screen);
      if (signal != SIGTSTP && signal != SIGWINCH) return signal;
      is_new = true;
    }
  }
  return 0;
}

/// How the job has ended, as far as it has said so.
std::string end_text(const Watch& watch, const Target& target) {
  const JobStatus& job = watch.job();
  const std::string name = job.recipe.empty() ? target.name() : job.recipe;
  if (job.has_ended()) return name + ": " + state_text(job);
  return fmt::format("{}: {}; then it was gone ({}): its own output says why", name,
                     state_text(job), watch.gone().message());
}

}  // namespace

int watch(const Target& target, JobStatus first, Duration interval, bool color) {
  Watch watch(target, std::move(first), interval);
  int signal = 0;
  Window window;
  {
    const TerminalSignals signals;
    Screen screen(color);
    signal = show(watch, target, screen, signals);
    window = screen.window();
  }
  constexpr int kBySignal = 128;
  if (signal == SIGHUP) return kBySignal + signal;  // nobody is there to read
  window.rows = 0;
  for (const std::string& line : picture_now(watch, target, window)) fmt::print("{}\n", line);
  if (watch.is_over()) fmt::print("\n{}\n", printable_line(end_text(watch, target)));
  return signal == 0 || signal == SIGINT ? kExitOk : kBySignal + signal;
}

}  // namespace stormo::cli
