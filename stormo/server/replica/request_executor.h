#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/replica/hosted_run.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

using transport::ByteRanges;

/// The payload of a request.
struct Payload {
  ByteRanges bytes = {};                 ///< as it is sent
  std::vector<PushedPiece> arrays = {};  ///< where each array of DataRequest::given lies
};

/// Acts in the name of one worker on a server's part of a run: executes its requests, and keeps its
/// last answers, so that a request that is repeated is not executed twice. One thread at a time.
class RequestExecutor {
 public:
  /// A reply.
  struct Answer {
    std::uint64_t id = 0;
    ByteRanges bytes = {};               ///< what is sent: the reply, then arrays of a shard, or
    std::vector<std::byte> values = {};  ///< of an exchange; or changed ranges, and their elements
    transport::MemoryFile saved = {};    ///< or of a save: all arrays

    /// Makes the head.
    void conclude(const Result<std::string>& outcome);
  };

  /// `run` has its shards.
  RequestExecutor(const HostedRun& run, int worker);

  /// Asked while a request waits: a failure ends the wait.
  void watch(std::function<Status()> status) { status_ = std::move(status); }

  int worker() const { return worker_; }
  /// Whether there is what the request is about.
  bool fits(const DataRequest& request) const;
  /// What is wrong if not: kCorrupt.
  static Status misfit();
  /// Receives the payload of a request on a socket that blocks. misfit() if the request does not
  /// fit. Arrays come into `memory`, which has largest_payload() bytes, each at a multiple of a
  /// cache line; those of a kPart come to where the push finds them. kExhausted without memory.
  Result<Payload> receive(transport::Channel& socket, const DataRequest& request,
                          std::byte* memory) const;
  /// Bytes of the largest payload.
  std::size_t largest_payload() const;

  /// Blocks until a read or push would not wait for other workers, at most until `by`. Then others
  /// may be faster.
  Status wait_to(const DataRequest& request, Deadline by) const;
  /// The result of the request. Arrays that follow it come into `answer`. `payload` stays as it is.
  Result<std::string> execute(const DataRequest& request, const Payload& payload, Answer& answer,
                              Deadline by);

  /// The last answer about the shard of this request, or about the ledger. If it has the id of the
  /// request, that is not to be executed again.
  Answer& last_answer(const DataRequest& request) {
    return answers_[is_of_ledger(request.op) ? shards_.size() : request.shard];
  }
  /// What the worker has read is not there any more, nor are parts of a push.
  void forget();

 private:
  Result<std::string> read(const DataRequest& request, Answer& answer, Deadline by);
  bool take_changes(const DataRequest& request, const Shard::View& view, Answer& answer,
                    ViewHead& head) const;
  Result<std::string> elastic_average(const DataRequest& request, const Payload& payload,
                                      Answer& answer, Deadline by);
  Result<std::string> save(const DataRequest& request, Answer& answer);
  Status set(const DataRequest& request, const Payload& payload);
  Result<std::string> ask_ledger(const DataRequest& request, Deadline by);
  /// Of gradients that came before their push.
  struct Parts {
    transport::MemoryFile memory;  // a place for each piece
    std::uint64_t sequence = 0;    // of the push
    std::string has = {};          // by piece: 1 if its gradient is here
  };
  void take_part(const DataRequest& request);
  bool has_parts(const DataRequest& request) const;
  SharedShard& shard(const DataRequest& request) const { return *shards_[request.shard]; }

  int worker_;
  bool coordinates_;
  std::function<Status()> status_ = [] { return Status(); };
  std::vector<std::unique_ptr<SharedShard>> shards_;
  std::unique_ptr<SharedLedger> ledger_;  // null: another server has it
  std::vector<Answer> answers_;           // the last of each shard, then of the ledger
  std::vector<Parts> parts_;              // by shard
};

}  // namespace stormo::server
