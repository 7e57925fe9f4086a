#include <stormo/launch/process/output.h>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include <stormo/base/printable.h>

namespace stormo::launch {
namespace {

constexpr std::size_t kCongested = 1u << 20;
/// After hurry(): twice what a rank that trains keeps for its reader (observe::BackgroundStream).
constexpr std::size_t kMostKept = 128u << 20;
/// Without a byte that is read, once the user wants an end.
constexpr Duration kReaderTime = std::chrono::seconds(1);
/// A pipe that poll() calls writable takes this much without blocking (PIPE_BUF).
constexpr std::size_t kAtOnce = 4096;
constexpr std::string_view kNotRead = "its reader does not read";

/// A line as a terminal may get it. What a carriage return would have overwritten (progress bars)
/// is left out.
std::string shown(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  return printable_line(line.substr(line.rfind('\r') + 1));
}

}  // namespace

OutputQueue::~OutputQueue() {
  if (watched_) loop_.forget(fd_);
}

bool OutputQueue::writable_now() const {
  pollfd p{fd_, POLLOUT, 0};
  return ::poll(&p, 1, 0) > 0;
}

void OutputQueue::push(std::string_view bytes) {
  if (closed_ || bytes.empty()) return;
  const std::size_t end = bytes.find('\n');
  if (pending() > most_) {
    lose(kNotRead);
    is_in_dropped_ = !bytes.ends_with('\n');
    bytes = is_in_line_ && end != std::string_view::npos ? bytes.substr(0, end + 1) : "";
  } else if (is_in_dropped_) {
    is_in_dropped_ = end == std::string_view::npos;
    bytes.remove_prefix(is_in_dropped_ ? bytes.size() : end + 1);
  }
  if (bytes.empty()) return;
  // of the line that abandon() has cut the rest was dropped
  if (has_cut_ && !is_in_line_ && pending() == 0) bytes_ += '\n';
  is_in_line_ = !bytes.ends_with('\n');
  bytes_.append(bytes);
  write_some();
}

void OutputQueue::lose(std::string_view reason) {
  if (!std::exchange(lost_, true) && on_loss_) on_loss_(reason);
}

void OutputQueue::abandon() {
  if (pending() == 0) return;
  is_in_dropped_ = std::exchange(is_in_line_, false);
  bytes_.clear();
  written_ = 0;
  write_some();
  lose(kNotRead);
}

/// Whole lines, as many as a pipe takes at once; of a longer line a part.
std::size_t OutputQueue::next_size() const {
  const std::string_view next = std::string_view(bytes_).substr(written_, kAtOnce);
  const std::size_t last_end = next.rfind('\n');
  return last_end == std::string_view::npos ? next.size() : last_end + 1;
}

void OutputQueue::write_some() {
  std::string_view problem;
  while (pending() > 0 && writable_now()) {
    const ssize_t n = ::write(fd_, bytes_.data() + written_, next_size());
    if (n > 0) {
      written_ += static_cast<std::size_t>(n);
      has_cut_ = bytes_[written_ - 1] != '\n';
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      closed_ = errno == EPIPE;
      problem = closed_ ? "its reader has gone" : std::strerror(errno);
      written_ = bytes_.size();
    }
  }
  if (pending() == 0) {
    bytes_.clear();
    written_ = 0;
  } else if (written_ > kCongested) {
    bytes_.erase(0, written_);
    written_ = 0;
  }
  const bool wanted = pending() > 0;
  if (wanted != watched_) {
    watched_ = wanted;
    if (!wanted) loop_.forget(fd_);
    // Regular files cannot be watched. They are always writable, so all was written above.
    if (wanted && !loop_.watch_writable(fd_, [this] { write_some(); }).ok()) watched_ = false;
  }
  if (!problem.empty()) lose(problem);
}

JobOutput::JobOutput(EventLoop& loop, OutputMode mode, bool any_reports)
    : loop_(loop),
      mode_(mode),
      any_reports_(any_reports),
      err_(loop, STDERR_FILENO),
      out_(loop, STDOUT_FILENO, [this](auto reason) {
        message(
            fmt::format("standard output: {}; output is being lost. The job goes on and will "
                        "end with exit code 1 at best",
                        reason));
      }) {}

void JobOutput::write(Rank rank, Stream stream, std::string_view bytes) {
  if (mode_ == OutputMode::kRaw && rank == 0) {
    if (stream == Stream::kError) return err_.push(bytes);
    return pass_on(rank, bytes);
  }
  if (mode_ == OutputMode::kRaw && any_reports_ && stream == Stream::kOutput) {
    return pass_on(rank, bytes);
  }
  partial_[{rank, stream}].feed(bytes, [&](std::string_view text) { line(rank, stream, text); });
}

/// A line that a lost rank has begun ends before the next one of another rank.
void JobOutput::pass_on(Rank rank, std::string_view bytes) {
  if (rank != reporter_ && is_line_open_) out_.push("\n");
  reporter_ = rank;
  is_line_open_ = !bytes.ends_with('\n');
  out_.push(bytes);
}

void JobOutput::end(Rank rank, Stream stream) {
  const auto it = partial_.find({rank, stream});
  if (it == partial_.end()) return;
  it->second.finish([&](std::string_view text) { line(rank, stream, text); });
  partial_.erase(it);
}

void JobOutput::line(Rank rank, Stream stream, std::string_view text) {
  if (mode_ == OutputMode::kJson) {
    const nlohmann::json object{{"event", "output"},
                                {"rank", rank},
                                {"stream", stream == Stream::kOutput ? "stdout" : "stderr"},
                                {"text", text}};
    record(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  const bool to_error = stream == Stream::kError || mode_ == OutputMode::kRaw;
  (to_error ? err_ : out_).push(fmt::format("[{}] {}\n", rank, shown(text)));
}

void JobOutput::message(std::string_view text) {
  err_.push(fmt::format("stormo: {}\n", message_text(text)));
}

void JobOutput::host_line(std::string_view host, std::string_view text) {
  err_.push(fmt::format("[{}] {}\n", host, shown(text)));
}

void JobOutput::record(std::string_view json) {
  if (mode_ == OutputMode::kJson) out_.push(std::string(json) + "\n");
}

bool JobOutput::congested() const {
  return !hurried_ && (out_.pending() > kCongested || err_.pending() > kCongested);
}

void JobOutput::hurry() {
  hurried_ = true;
  out_.bound(kMostKept);
  err_.bound(kMostKept);
}

void JobOutput::interrupt() {
  if (std::exchange(interrupted_, true)) abandon();
  hurry();
}

Status JobOutput::drain() {
  std::size_t before = 0;
  Deadline by = Deadline::never();
  while (pending() > 0) {
    if (!interrupted_) {
      by = Deadline::never();
    } else if (by.is_never() || pending() != before) {
      by = Deadline::after(kReaderTime);
    }
    before = pending();
    STORMO_RETURN_IF_ERROR(loop_.run_once(by));
    if (by.expired() && pending() == before) abandon();
  }
  return {};
}

void JobOutput::end_lines() {
  while (!partial_.empty()) {
    const auto [rank, stream] = partial_.begin()->first;
    end(rank, stream);
  }
}

void JobOutput::abandon() {
  out_.abandon();
  err_.abandon();
}

}  // namespace stormo::launch
