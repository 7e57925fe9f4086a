#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/event_loop.h>

namespace stormo::launch {

enum class Stream { kOutput, kError };

/// How the ranks' output appears.
enum class OutputMode {
  kPrefix,  ///< whole lines, "[rank] line", on the stream they came from
  kRaw,     ///< rank 0's bytes as they are; the other ranks' lines, prefixed, on standard error
  kJson,    ///< one JSON object per line on standard output
};

/// Cuts one stream into lines. What ends without a newline is a line too; one longer than kLongest
/// is cut, so that memory stays bounded.
class LineSplitter {
 public:
  static constexpr std::size_t kLongest = 64 * 1024;
  /// Calls `line` for each line without its newline.
  template <class Consumer>
  void feed(std::string_view bytes, Consumer line) {
    partial_.append(bytes);
    std::size_t begin = 0;
    for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1)
      line(std::string_view(partial_).substr(begin, end - begin));
    partial_.erase(0, begin);
    for (; partial_.size() >= kLongest; partial_.erase(0, kLongest))
      line(std::string_view(partial_).substr(0, kLongest));
  }
  /// The stream has ended.
  template <class Consumer>
  void finish(Consumer line) {
    if (!partial_.empty()) line(std::string_view(partial_));
    partial_.clear();
  }

 private:
  std::string partial_;
};

/// Writes bytes to one of the launcher's own descriptors without ever blocking its loop for a slow
/// reader, and without changing the descriptor's flags, which it shares with other processes.
class OutputQueue {
 public:
  OutputQueue(EventLoop& loop, int fd) : loop_(loop), fd_(fd) {}
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  void push(std::string_view bytes);
  std::size_t pending() const { return bytes_.size() - written_; }
  /// Writes everything, waiting for the reader.
  void drain();

 private:
  bool writable_now() const;
  void write_some();

  EventLoop& loop_;
  int fd_;
  std::string bytes_;
  std::size_t written_ = 0;
  bool watched_ = false;
  bool broken_ = false;  ///< the reader has gone; the job goes on
};

/// All ranks' output and the launcher's own messages, in one order.
class JobOutput {
 public:
  JobOutput(EventLoop& loop, OutputMode mode);

  void write(Rank rank, Stream stream, std::string_view bytes);
  /// The stream of this rank has ended.
  void end(Rank rank, Stream stream);
  /// A message of the launcher itself, on standard error.
  void message(std::string_view text);
  /// A line of what a host's remote shell says.
  void host_line(std::string_view host, std::string_view text);
  /// A JSON line on standard output; nothing in the other modes.
  void record(std::string_view json);
  /// True while the reader is so far behind that ranks must not be read.
  bool congested() const;
  /// Ends all lines and writes everything.
  void finish();
  OutputMode mode() const { return mode_; }

 private:
  void line(Rank rank, Stream stream, std::string_view text);

  OutputMode mode_;
  OutputQueue out_;
  OutputQueue err_;
  std::map<std::pair<Rank, Stream>, LineSplitter> partial_;
};

}  // namespace stormo::launch
