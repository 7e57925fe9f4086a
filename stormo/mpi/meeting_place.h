#pragma once

#include <functional>
#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/mpi/link.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/store.h>

namespace stormo::mpi {

/// A Store of the job, in which the members of a group meet before they enter MPI: a call of MPI
/// that waits for other ranks cannot be given up, and no other thread may call MPI meanwhile. Rank
/// 0 serves it, and all ranks are connected to it. Thread-safe.
class MeetingPlace {
 public:
  /// Where rank 0 listens: on one host a Unix socket, else a port.
  struct Where {
    bool one_host = true;
    std::string interface;  ///< whose address the port has; empty: all, and `host` resolves to one
    std::string host;       ///< the name of rank 0's
  };
  /// A collective of all ranks.
  static Result<std::shared_ptr<MeetingPlace>> open(Link& world, const Where& where);
  /// Null if some rank does not reach it.
  transport::KeyValues* values() const { return client_.get(); }
  /// OK, or why there is none: the same on all ranks.
  const Status& status() const { return status_; }

 private:
  Status serve(const Where& where);
  Status reach(const std::string& said);

  std::unique_ptr<transport::StoreServer> server_;  // on rank 0
  transport::StoreAddress address_;
  transport::Secret secret_;
  std::unique_ptr<transport::StoreClient> client_;
  Status status_;
};

/// The turn of a group to be created: one of the job at a time, so that ranks that create several
/// groups at once, on several threads, do not enter MPI in different orders.
class Turn {
 public:
  /// `id`: of the group. All its members have met.
  Turn(transport::KeyValues& values, std::string id, bool is_founder)
      : values_(values), id_(std::move(id)), is_founder_(is_founder) {}
  /// Blocks until it has come. After an error others may wait for ever: the job has to fail.
  Status wait(const std::function<Status()>& job);
  /// For after this member has created it.
  void end();

 private:
  transport::KeyValues& values_;
  const std::string id_;
  const bool is_founder_;
};

}  // namespace stormo::mpi
