#pragma once

#include <sys/types.h>

#include <memory>
#include <utility>

#include <stormo/base/status.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::launch {

/// A process that has loaded a program, and forks copies of it. A program with libtorch takes 0.2 s
/// of processor time to load; a fork of it takes milliseconds, and shares its memory until it is
/// written to. (Python's multiprocessing has start method "forkserver".)
///
/// The copies become children of this process, which adopts orphans from then on (orphans.h).
class ForkServer {
 public:
  /// Starts `program`, whose main() calls serve_forks(). Blocks until it is loaded, at most 10
  /// seconds. An error if it ends before, or has started threads; kInterrupted as soon as
  /// end_is_wanted() (signals.h).
  static Result<std::unique_ptr<ForkServer>> start(Child program);
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;
  ~ForkServer() { end(); }

  /// Ends the server; the copies go on.
  void end();
  /// Readable once the process of the server has ended by itself; then call end().
  int descriptor() const { return control_.get(); }

  /// As launch::spawn(), with the program of the server in place of the child's. A group to enter
  /// must be of the server's session. `ps` shows the arguments of the server. Blocks and is
  /// interrupted as start(): a server that is stopped does not answer.
  Result<pid_t> spawn(const Child& child);

 private:
  ForkServer(pid_t pid, Descriptor control) : pid_(pid), control_(std::move(control)) {}
  pid_t pid_;
  Descriptor control_;
};

/// Call it first in main(), before threads are started, with the arguments of main(). Returns at
/// once in a process that was not started as a ForkServer. A server does not return; each of its
/// copies does, with its own arguments, as if it had been started by itself.
void serve_forks(int& argc, char**& argv);

}  // namespace stormo::launch
