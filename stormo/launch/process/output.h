#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/process/event_loop.h>

namespace stormo::launch {

enum class Stream { kOutput, kError };

/// How the output of ranks is shown.
enum class OutputMode {
  kPrefix,  ///< whole lines, "[rank] line", on the stream they came from; control bytes escaped
  kRaw,   ///< rank 0's bytes as they are; the others' lines as above, all on standard error. Where
          ///< another rank may report after it, standard output of all is passed on
  kJson,  ///< one JSON object per line on standard output
};

/// Splits one stream into lines. A last line without newline is a line too. Lines longer than
/// kLongest are cut, so that memory is bounded.
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

/// Writes bytes to one of the launcher's own descriptors. It never blocks the loop for a slow
/// reader, and does not change the descriptor's flags, which are shared with other processes. Bytes
/// that cannot be written are dropped; later bytes are tried again, unless the reader has gone.
/// What is dropped are whole lines. A pipe gets a line of up to 4 KiB whole, or nothing of it.
class OutputQueue {
 public:
  /// Called with the reason when bytes are lost for the first time.
  using OnLoss = std::function<void(std::string_view)>;

  OutputQueue(EventLoop& loop, int fd, OnLoss on_loss = {})
      : loop_(loop), fd_(fd), on_loss_(std::move(on_loss)) {}
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  void push(std::string_view bytes);
  std::size_t pending() const { return bytes_.size() - written_; }
  /// From now on limits the buffer to so many bytes: what comes beyond them is dropped.
  void bound(std::size_t most) { most_ = most; }
  /// Drops all bytes that the reader has not read.
  void abandon();
  bool lost() const { return lost_; }

 private:
  bool writable_now() const;
  std::size_t next_size() const;
  void write_some();
  void lose(std::string_view reason);

  EventLoop& loop_;
  int fd_;
  OnLoss on_loss_;
  std::string bytes_;
  std::size_t written_ = 0;
  std::size_t most_ = std::string::npos;
  bool is_in_line_ = false;     ///< the bytes that were taken end within a line
  bool is_in_dropped_ = false;  ///< what comes begins within a line that is dropped
  bool has_cut_ = false;        ///< the bytes that were written end within a line
  bool watched_ = false;
  bool closed_ = false;  ///< the reader has gone; the job goes on
  bool lost_ = false;
};

/// All ranks' output and the launcher's own messages, in one order.
class JobOutput {
 public:
  /// `any_reports`: rank 0 may be lost, and another rank goes on with its standard output.
  JobOutput(EventLoop& loop, OutputMode mode, bool any_reports = false);

  void write(Rank rank, Stream stream, std::string_view bytes);
  /// The stream of this rank has ended.
  void end(Rank rank, Stream stream);
  /// A message of the launcher itself, on standard error.
  void message(std::string_view text);
  /// A line of output of a host's remote shell.
  void host_line(std::string_view host, std::string_view text);
  /// A JSON line on standard output; nothing in the other modes.
  void record(std::string_view json);
  /// True while the reader is so far behind that the ranks' output must not be read.
  bool congested() const;
  /// Call when the job is to end: the ranks' output is read, however far behind the reader is, so
  /// that they can end. Up to 128 MiB of it wait for the reader.
  void hurry();
  /// Likewise, because the user wants it: drain() does not wait for a reader that does not read.
  /// The second time drops what is not read.
  void interrupt();
  /// Ends all lines.
  void end_lines();
  /// Runs the loop until all is written: as long as the reader likes. After interrupt(), until it
  /// has read nothing for a second; then the rest is dropped.
  Status drain();
  /// Whether anything did not reach standard output or standard error.
  bool lost() const { return out_.lost() || err_.lost(); }
  OutputMode mode() const { return mode_; }

 private:
  void line(Rank rank, Stream stream, std::string_view text);
  void pass_on(Rank rank, std::string_view bytes);
  std::size_t pending() const { return out_.pending() + err_.pending(); }
  void abandon();

  EventLoop& loop_;
  OutputMode mode_;
  const bool any_reports_;
  Rank reporter_ = 0;  ///< who has written to standard output last
  bool is_line_open_ = false;
  bool hurried_ = false;
  bool interrupted_ = false;
  OutputQueue err_;
  OutputQueue out_;
  std::map<std::pair<Rank, Stream>, LineSplitter> partial_;
};

}  // namespace stormo::launch
