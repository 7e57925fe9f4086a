#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::launch {

/// "0": ranks of an elastic job end with their launcher, as those of other jobs. "1": they go on.
inline constexpr const char* kOutlivesVariable = "STORMO_OUTLIVES_LAUNCHER";
/// Of a rank that was started when there was no launcher any more.
inline constexpr const char* kNoLauncherVariable = "STORMO_NO_LAUNCHER";

/// `value`: of the variable. Without one they go on where a host may be lost with the launcher and
/// leave others.
inline bool outlives_launcher(std::string_view value, int hosts) {
  return value.empty() ? hosts > 1 : value != "0";
}

/// For a rank that is to go on when the process that has started it, the launcher or the agent of
/// its host, ends in whatever way. Otherwise the kernel and the guard kill it then.
///
/// Its output, if it goes to that process by a pipe, then goes to files, with what was not read
/// before.
class Outliving {
 public:
  struct Options {
    std::string output;  ///< the files are this with ".out" and ".err"
    /// Called once, on a thread of this object or by begin(), when output has moved.
    std::function<void()> on_orphaned;
    bool is_orphan = false;  ///< from the beginning: output moves at once
  };
  /// An error: this process ends with its parent, as before.
  static Result<std::unique_ptr<Outliving>> begin(Options options);
  ~Outliving();
  Outliving(const Outliving&) = delete;
  Outliving& operator=(const Outliving&) = delete;

 private:
  explicit Outliving(Options options) : options_(std::move(options)) {}
  Status prepare();
  void wait();
  void move_output();

  const Options options_;
  Descriptor lifeline_;
  Descriptor parent_;                 // readable when it has ended
  std::array<Descriptor, 2> unread_;  // other ends of the pipes of standard output and error
  Descriptor stop_;
  std::thread thread_;
};

/// Whether this process, whose group a guard leads, has an Outliving.
bool is_outliving(pid_t process);

}  // namespace stormo::launch
