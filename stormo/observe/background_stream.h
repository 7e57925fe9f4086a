#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <thread>

#include <stormo/base/clock.h>

namespace stormo::observe {

/// A stream to a descriptor that never blocks its writers: bytes are buffered, and a thread of the
/// stream writes them. If the reader is slow, stopped or gone, or the disk is full, output can be
/// lost, but the run continues. SIGPIPE and SIGXFSZ must be ignored. The descriptor is borrowed.
class BackgroundStream final : private std::streambuf, public std::ostream {
 public:
  /// Called once, on the stream's thread or on that of a writer, with the reason when bytes are
  /// lost for the first time.
  using OnLoss = std::function<void(std::string_view)>;
  /// Maximal number of buffered bytes; further bytes are lost.
  static constexpr std::size_t kMostKept = 64u << 20;

  explicit BackgroundStream(int fd, OnLoss on_loss = {});
  /// Drops what is not written yet.
  ~BackgroundStream() override;

  /// Appends `bytes`; the one member function that any thread may call.
  void append(std::string_view bytes);
  /// Blocks until all is written or `by` has passed. False if anything was lost.
  bool finish(Deadline by);

 private:
  int overflow(int c) override;
  std::streamsize xsputn(const char* bytes, std::streamsize size) override;

  void write_all();
  bool write_some();
  void lose(std::string_view reason);

  const int fd_;
  const OnLoss on_loss_;
  int wake_ = -1;  ///< eventfd: ends the wait for a reader
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string kept_;      ///< guarded by mutex_
  std::size_t done_ = 0;  ///< bytes at the front of kept_ that are written; guarded by mutex_
  bool closed_ = false;   ///< guarded by mutex_; the reader has gone
  bool lost_ = false;     ///< guarded by mutex_
  bool stop_ = false;     ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace stormo::observe
