#pragma once

#include <cstdint>
#include <string>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/protocol/register/register_message.h>

namespace stormo::membership {

/// Which acceptor of which register.
struct AcceptorName {
  std::string job;
  std::int32_t index = 0;
  std::int32_t count = 1;  ///< acceptors of the register
  bool operator==(const AcceptorName&) const = default;
  /// "acceptor 0 of 3 of job x".
  std::string text() const;
};

/// Of the host: whether the acceptor comes back after it. One that does not needs no disk.
enum class Crash { kIsSurvived, kEndsTheAcceptor };

/// The file `register` in a folder that belongs to one acceptor: all that it may never forget. A
/// crash at any moment leaves what save() has last reported as done, or what it was about to write.
/// The folder is locked while this object lives.
class AcceptorFile {
 public:
  /// For a new register: makes the folder if it is missing. kInvalidArgument if there is a file
  /// already, of whichever job.
  static Result<AcceptorFile> create(const std::string& folder, const AcceptorName& name,
                                     Crash crash = Crash::kIsSurvived);
  /// For an acceptor that was there before. kNotFound without a file: an acceptor that has lost its
  /// state must not vote. kCorrupt for a damaged one, kRefused for that of another version of
  /// Stormo, kInvalidArgument for that of another acceptor.
  static Result<AcceptorFile> open(const std::string& folder, const AcceptorName& name);

  const AcceptorName& name() const { return name_; }
  const protocol::AcceptorState& state() const { return state_; }
  /// On disk when it returns OK, if a crash is to be survived: milliseconds. After kIo state() is
  /// the one before, and the file has either.
  Status save(const protocol::AcceptorState& state);

 private:
  AcceptorFile(std::string folder, AcceptorName name, Crash crash)
      : folder_(std::move(folder)), name_(std::move(name)), syncs_(crash == Crash::kIsSurvived) {}
  Status lock();
  Status write_new(const std::string& path, const std::string& bytes) const;

  std::string folder_;
  AcceptorName name_;
  bool syncs_;
  Descriptor lock_;  // the open folder
  protocol::AcceptorState state_{};
};

}  // namespace stormo::membership
