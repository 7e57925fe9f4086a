#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::comm {

/// A listening socket in a folder that only this user can enter. Who is connected to it is a
/// process of this user on this host, which the kernel vouches for.
class HostSocket {
 public:
  /// In the first of these folders that suits. Removes sockets there that nobody listens on any
  /// more.
  static Result<std::unique_ptr<HostSocket>> open(const std::vector<std::string>& folders);
  /// Removes the socket's file.
  ~HostSocket();
  HostSocket(const HostSocket&) = delete;
  HostSocket& operator=(const HostSocket&) = delete;

  const std::string& path() const { return path_; }
  /// Everybody who has connected until now.
  Result<std::vector<Descriptor>> connected();

 private:
  HostSocket(std::string path, Descriptor listener)
      : path_(std::move(path)), listener_(std::move(listener)) {}
  std::string path_;
  Descriptor listener_;
};

/// Connects to another process's HostSocket, without waiting. The path may come from anybody:
/// kRefused, before anything is connected, where it is in no folder of this user alone, and where a
/// process of another user listens.
Result<Descriptor> connect_to_host_socket(const std::string& path);

}  // namespace stormo::comm
