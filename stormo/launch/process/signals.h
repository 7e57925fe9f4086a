#pragma once

#include <csignal>
#include <memory>

#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

/// While this object lives, signals of the user are read from a descriptor instead of interrupting
/// the program, except those that this process was told to ignore (nohup). Writing to a closed pipe
/// or beyond `ulimit -f` is an error and does not kill the process. Children keep their exit status
/// until they are waited for.
class SignalReader {
 public:
  static Result<std::unique_ptr<SignalReader>> create();
  ~SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int descriptor() const { return fd_.get(); }
  /// The next signal; 0 when there is none.
  int next();

 private:
  SignalReader() = default;
  transport::Descriptor fd_;
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  struct sigaction size_before_ {};
  struct sigaction child_before_ {};
};

/// Whether this process ignores the signal.
bool is_ignored(int signal);

/// Whether SIGINT, SIGTERM or SIGHUP waits to be read by a SignalReader: the user wants an end.
/// Whoever waits where no reader is asked looks here now and then.
bool end_is_wanted();

}  // namespace stormo::launch
