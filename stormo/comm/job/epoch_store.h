#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// The Store that a process serves for groups of an elastic job. A group meets there under a number
/// of its own, which all its keys begin with. Thread-safe.
class EpochStore {
 public:
  static Result<std::unique_ptr<EpochStore>> start(transport::StoreServer::Options options);

  transport::StoreAddress address() const { return server_->address(); }
  /// Removes what groups have left whose number `is_over`. Blocks, for a second at most; what is
  /// not removed by then is the next time.
  void forget(const std::function<bool(Epoch)>& is_over);

 private:
  explicit EpochStore(transport::Secret secret) : secret_(std::move(secret)) {}
  void note(std::string_view key);

  const transport::Secret secret_;
  std::mutex mutex_;
  std::map<Epoch, std::set<std::string, std::less<>>> keys_;  // by number of the group
  std::unique_ptr<transport::StoreServer> server_;            // last: its thread calls note()
};

/// What the keys of a group begin with.
std::string prefix_of(Epoch number);

}  // namespace stormo::comm
