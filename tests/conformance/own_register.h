#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/temporary_folder.h>
#include <stormo/membership/acceptor/register_server.h>
#include <stormo/membership/quorum_register.h>

#include "tests/conformance/register_conformance.h"

namespace stormo::membership::test {

/// An address of loopback that other processes do not use: no connection of theirs takes the port
/// of a server that is to come back there.
inline std::string own_loopback() {
  const int pid = ::getpid();
  return "127.1." + std::to_string(pid / 250 % 250) + "." + std::to_string(pid % 250 + 1);
}

/// Acceptors as threads of this process, on loopback.
class OwnRegister final : public RegisterUnderTest {
 public:
  explicit OwnRegister(int count)
      : folder_(TemporaryFolder::create("stormo-register-").take_or_throw()),
        servers_(static_cast<std::size_t>(count)),
        addresses_(servers_.size(), {.host = own_loopback()}) {
    for (int i = 0; i < count; ++i) {
      start(i, AcceptorFile::create(folder_of(i), name(i)).take_or_throw());
    }
  }

  std::unique_ptr<Register> client() override { return client(secret_); }
  std::unique_ptr<Register> client(const transport::Secret& secret) {
    return std::make_unique<QuorumRegister>(
        QuorumRegister::Options{.acceptors = addresses_, .secret = secret});
  }
  void stop(int i) { servers_[static_cast<std::size_t>(i)].reset(); }
  /// At the same address, with what its file has.
  void restart(int i) { start(i, AcceptorFile::open(folder_of(i), name(i)).take_or_throw()); }

  std::string folder_of(int i) const { return (folder_.path() / std::to_string(i)).string(); }
  AcceptorName name(int i) const {
    return {.job = "digits", .index = i, .count = static_cast<std::int32_t>(servers_.size())};
  }
  std::vector<transport::HostPort>& addresses() { return addresses_; }
  const transport::Secret& secret() const { return secret_; }

 private:
  void start(int i, AcceptorFile file) {
    const auto at = static_cast<std::size_t>(i);
    auto server = RegisterServer::start(
        std::move(file), {.address = addresses_[at], .ports = {}, .secret = secret_});
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    servers_[at] = *std::move(server);
    addresses_[at] = servers_[at]->address();
  }

  TemporaryFolder folder_;
  transport::Secret secret_ = transport::Secret::random();
  std::vector<std::unique_ptr<RegisterServer>> servers_;
  std::vector<transport::HostPort> addresses_;
};

}  // namespace stormo::membership::test
