#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/optim/vector_program.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/ledger.h>
#include <stormo/server/shard.h>

namespace stormo::server {

// Messages between a worker and a server on the data connection of a worker that does not map the
// server's memory; and between a server and its backup, which executes the same requests. A message
// is a frame (length in 32 bits, head) and a payload: the bytes of arrays, whose number both sides
// know from the head and the layout of the shard. Replies come in the order of requests. All
// decoding is strict, see server_message.h.

/// Values are wire format: append only.
enum class DataOp : std::uint8_t {
  /// count: version of the weights that the worker has, plus 1, or 0. Payload of the reply: weights
  /// of all pieces; or ranges that have changed since, then their elements, see ViewHead.
  kRead = 1,
  kLook = 2,  ///< same
  kPush = 3,  ///< payload: gradients of the pieces that have one; of rows indices, then values
  kSet = 4,   ///< payload: arrays of the piece that are given, in the order of kSave
  /// Payload of the reply: of each piece weights, slots, mean square of gradients, vectors.
  kSave = 5,
  kLeave = 6,  ///< number: lr
  kJoin = 7,
  kState = 8,
  kDeal = 9,  ///< from here on about the ledger
  kTerms = 10,
  kNext = 11,
  kLookAtLedger = 12,
  kWait = 13,
  kStop = 14,  ///< count: signal
  kLeaveLedger = 15,
  kExchange = 16,  ///< number: alpha; payload both ways: the worker's values of all pieces
  kLose = 17,      ///< to a backup: the worker is lost, in all shards and in the ledger
  kComeBack = 18,  ///< to a backup: it is back
  kRun = 19,       ///< of a coordinator: a vector program
  kAdvance = 20,   ///< of a coordinator, about the ledger; count: step
  kPart = 21,      ///< of a push that comes; payload: gradients of some pieces; count: its sequence
  kElect = 22,     ///< to a backup: worker is the next chief; count: number of its term
};
bool is_of_ledger(DataOp op);
/// Only a coordinator may ask for it.
bool is_command(DataOp op);
/// A coordinator may ask for it: it is no member of the shards.
bool is_of_coordinator(DataOp op);
/// What a primary tells its backup about a worker. No worker asks for it.
bool is_about_worker(DataOp op);
/// Doing it again changes nothing, so its answer is not kept.
bool is_harmless(DataOp op);

/// What an array of a payload is. kSentBefore: of a push, a kPart had it.
inline constexpr char kNotGiven = 0, kArrayGiven = 1, kRowsGiven = 2, kSentBefore = 3;

/// Of the gradient of a piece that is given in rows; else 0.
struct RowsHead {
  std::int64_t count = 0;       ///< of rows
  std::int64_t row_length = 0;  ///< elements
  bool operator==(const RowsHead&) const = default;
};

/// The head of a request. Fields that an operation does not use are 0.
struct DataRequest {
  DataOp op = DataOp::kRead;
  std::uint32_t shard = 0;                ///< of those of the server; 0 for the ledger
  std::uint64_t id = 0;                   ///< grows; a request that is repeated keeps its own
  std::int64_t patience_ns = 0;           ///< time until the caller's deadline; -1: none
  std::uint64_t count = 0;                ///< kPush, kExchange: sequence; kSet: piece; kStop; kRead
  double number = 0;                      ///< kPush, kLeave: lr; kExchange: alpha
  double gradient_scale = 0, weight = 0;  ///< kPush
  double loss_sum = 0;                    ///< kPush
  std::int32_t portion = -1;              ///< kPush
  std::uint64_t batch = 0;                ///< kPush
  std::int64_t updates = 0;               ///< kSet
  std::string given;  ///< a byte for each array that the payload may have: kNotGiven or another
  Ledger::Terms terms = {};         ///< kDeal
  Ledger::Outcome outcome = {};     ///< kNext
  std::string program = {};         ///< kRun
  std::vector<RowsHead> rows = {};  ///< kPush: by piece; empty if none is given in rows
  // to a backup:
  std::int32_t worker = -1;  ///< in whose name
  std::uint64_t origin = 0;  ///< the id that the worker gave it
  std::string result = {};   ///< what it must give
};
std::string encode(const DataRequest& request);
Result<DataRequest> decode_data_request(std::string_view head);
/// DataRequest::patience_ns of a caller with this deadline.
std::int64_t patience_of(Deadline by);

/// The head of a reply: a result of the operation as bytes, or the message of a failure.
struct DataReply {
  std::uint64_t id = 0;
  Code code = Code::kOk;
  std::string_view body;  ///< borrowed
};
std::string encode(const DataReply& reply);
Result<DataReply> decode_data_reply(std::string_view head);

/// Result of kRead, kLook and kSave.
struct ViewHead {
  std::uint64_t version = 0, commit = 0;
  std::vector<std::int64_t> updates = {};  ///< by piece; kSave only
  /// Of kRead and kLook: the payload is a list of ChangedRange, then the elements of these.
  bool has_changes = false;
  std::uint64_t ranges = 0, bytes = 0;  ///< their number, and bytes of their elements
};
std::string encode(const ViewHead& view);
Result<ViewHead> decode_view_head(std::string_view bytes);
std::string encode(const Shard::Pushed& pushed);
Result<Shard::Pushed> decode_pushed(std::string_view bytes);
std::string encode(const Shard::Joined& joined);
Result<Shard::Joined> decode_joined(std::string_view bytes);
std::string encode(const protocol::ShardState& state);
Result<protocol::ShardState> decode_shard_state(std::string_view bytes);
std::string encode(const Ledger::Terms& terms);
Result<Ledger::Terms> decode_ledger_terms(std::string_view bytes);
std::string encode(const Ledger::Turn& turn);
Result<Ledger::Turn> decode_turn(std::string_view bytes);
/// Of kRun, and its result.
std::string encode(const optim::VectorProgram& program);
Result<optim::VectorProgram> decode_vector_program(std::string_view bytes);
std::string encode(const std::vector<double>& numbers);
Result<std::vector<double>> decode_numbers(std::string_view bytes);
/// Result of kLeave.
std::string encode_count(std::uint64_t count);
Result<std::uint64_t> decode_count(std::string_view bytes);

/// A worker opens a data connection; the request kAttach has it.
struct Attachment {
  std::int32_t worker = 0;
  std::int32_t part = 0;  ///< the shards of this server of the list, with backups those it had
  std::uint64_t token = 0;
  bool coordinates = false;  ///< for the run's coordinator, in the process of worker 0
  bool operator==(const Attachment&) const = default;
};
std::string encode(const Attachment& attachment);
Result<Attachment> decode_attachment(std::string_view bytes);

}  // namespace stormo::server
