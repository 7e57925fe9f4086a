#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include <stormo/comm/communicator.h>
#include <stormo/observe/trace_sink.h>

namespace stormo::cli {

/// The trace of a run. A run that ends well is in one file, written by rank 0. One that fails
/// leaves a file of each rank, with what it did until then: PATH for rank 0, "run.rank1.json"
/// beside "run.json" for rank 1. They are written as soon as the group has failed, by a thread of
/// their own: a rank whose main thread is stuck leaves its file, too.
class TraceFile {
 public:
  /// `watch`: whether a thread may ask the group how it is; not with MPI as the engine.
  TraceFile(comm::Communicator& world, std::string path, bool watch);
  /// Without finish() the run has failed.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;

  Sink& sink() { return sink_; }
  /// Reads the clocks of all hosts, before the first event. A collective.
  Status begin();
  /// Reads the clocks again, and writes the traces of all ranks as one file, on the clock of rank
  /// 0. A collective.
  Status finish();

 private:
  void watch_group();
  void write_part();
  void stop_watching();

  comm::Communicator& world_;
  const std::string path_;
  observe::TraceSink sink_;
  bool finished_ = false;
  std::mutex mutex_;  // one writes the part
  bool part_written_ = false;
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
};

/// "run.rank1.json" for "run.json".
std::string trace_part_path(const std::string& path, int rank);

}  // namespace stormo::cli
