#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/link/byte_ranges.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/replica/hosted_run.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// Acts in the name of one worker on a server's part of a run: executes its requests, and keeps its
/// last answers, so that a request that is repeated is not executed twice. One thread at a time.
class RequestExecutor {
 public:
  /// A reply: its head, and the arrays that follow it.
  struct Answer {
    std::uint64_t id = 0;
    std::string frame = {};
    std::optional<Shard::View> view = {};  ///< of a read: its weights
    std::vector<std::byte> values = {};  ///< of an exchange; or changed ranges, and their elements
    transport::MemoryFile saved = {};    ///< of a save: all arrays
    std::size_t saved_bytes = 0;

    /// Makes the head.
    void conclude(const Result<std::string>& outcome);
  };

  /// `run` has its shards.
  RequestExecutor(const HostedRun& run, int worker);

  /// Asked while a request waits: a failure ends the wait.
  void watch(std::function<Status()> status) { status_ = std::move(status); }

  /// Whether there is what the request is about.
  bool fits(const DataRequest& request) const;
  /// Where in `payload` the arrays of a request that fits lie: each at a multiple of a cache line.
  /// Those of a kPart lie here, where the push finds them.
  ByteRanges payload_of(const DataRequest& request, std::byte* payload) const;
  /// Bytes of the largest payload.
  std::size_t largest_payload() const;
  /// The answer, valid until the next request.
  ByteRanges bytes_of(const DataRequest& request, const Answer& answer) const;

  /// Blocks until a read or push would not wait for other workers, at most until `by`. Then others
  /// may be faster.
  Status wait_to(const DataRequest& request, Deadline by) const;
  /// The result of the request. Arrays that follow it come into `answer`. `payload` stays as it is.
  Result<std::string> execute(const DataRequest& request, const std::byte* payload, Answer& answer,
                              Deadline by);

  /// The answer that was kept of this request; null if it has to be executed.
  const Answer* answer_to(const DataRequest& request) const;
  const Answer& keep(const DataRequest& request, Answer answer);
  /// What the worker has read is not there any more, nor are parts of a push.
  void forget();

 private:
  Result<std::string> read(const DataRequest& request, Answer& answer, Deadline by);
  void take_changes(const DataRequest& request, Answer& answer, ViewHead& head) const;
  Result<std::string> exchange(const DataRequest& request, const std::byte* payload, Answer& answer,
                               Deadline by);
  Result<std::string> push(const DataRequest& request, const std::byte* payload, Deadline by);
  Result<std::string> save(const DataRequest& request, Answer& answer);
  Status set(const DataRequest& request, const std::byte* payload);
  Result<std::string> ask_ledger(const DataRequest& request, Deadline by);
  bool rows_fit(const DataRequest& request) const;
  std::size_t bytes_given(const DataRequest& request, std::size_t array) const;
  std::size_t slot_of(const DataRequest& request) const;
  /// Of gradients that came before their push.
  struct Parts {
    transport::MemoryFile memory;  // a place for each piece
    std::uint64_t sequence = 0;    // of the push
    std::string has = {};          // by piece: 1 if its gradient is here
  };
  void take_part(const DataRequest& request);
  SharedShard& shard(const DataRequest& request) const { return *shards_[request.shard]; }

  bool coordinates_;
  std::function<Status()> status_ = [] { return Status(); };
  std::vector<std::unique_ptr<SharedShard>> shards_;
  std::unique_ptr<SharedLedger> ledger_;  // null: another server has it
  std::vector<Answer> answers_;           // the last of each shard, then of the ledger
  std::vector<Parts> parts_;              // by shard
};

}  // namespace stormo::server
