#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/membership/register.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership {

/// A key of an etcd (3.4 or newer) that the site runs, by its JSON gateway over HTTP. Its version
/// is the epoch. The thread of the caller does all of it.
class EtcdRegister final : public Register {
 public:
  struct Options {
    std::vector<transport::HostPort> endpoints;  ///< of one cluster, at least one; asked in turn
    std::string key;
    std::string user, password;  ///< no user: etcd does not ask for one
  };
  /// Connects in the first call. One process may have any number of these.
  explicit EtcdRegister(Options options);

  /// kDeadlineExceeded and kRefused say what each endpoint has answered; it is refused once all of
  /// them do so. kCorrupt if the key has no record.
  Result<EpochRecord> read(Deadline by) override;
  /// Also kCancelled if an answer was lost, and the present record does not tell what became of
  /// `next`.
  Result<Swap> compare_and_swap(const EpochRecord& next, Deadline by) override;

 private:
  struct Endpoint {
    std::string address;
    Status trouble;  ///< what it has answered last
  };
  using Take = std::function<Status(std::string_view)>;

  Status ask(std::string_view path, const std::string& body, const Take& take, Deadline by);
  Status ask_one(const Endpoint& endpoint, std::string_view path, const std::string& body,
                 const Take& take, Deadline by);
  Status post(const Endpoint& endpoint, std::string_view path, const std::string& body,
              const Take& take, Deadline by);
  Status failure(Code code, std::string_view what) const;

  std::vector<Endpoint> endpoints_;
  std::string key_, user_, password_;
  std::string token_;         // of the user; empty: none yet
  std::size_t current_ = 0;   // the endpoint that is asked next
  bool may_be_done_ = false;  // a request of this call whose answer was lost
};

}  // namespace stormo::membership
