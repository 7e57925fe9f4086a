#pragma once

#include <csignal>
#include <memory>

#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

/// While it lives, signals of the user arrive on a descriptor instead of interrupting the program,
/// writing to a reader that has gone or beyond `ulimit -f` is an error, not a death, and children
/// leave their exit status.
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

}  // namespace stormo::launch
