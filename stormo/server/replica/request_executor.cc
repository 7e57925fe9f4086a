#include <stormo/server/replica/request_executor.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <stormo/server/aligned.h>
#include <stormo/transport/call/reply.h>

namespace stormo::server {
namespace {

/// Number of a piece's arrays: weights, slots, mean square of gradients, vectors.
std::size_t arrays_of(const SharedShard& shard) {
  return 1 + shard.slots() + (shard.has_mean_square() ? 1 : 0) + shard.vectors();
}

std::size_t bytes_of_pieces(const SharedShard& shard) {
  std::size_t bytes = 0;
  for (const ShardPiece& piece : shard.pieces()) bytes += aligned_bytes(piece);
  return bytes;
}

/// One of them.
std::byte*& array_of(PieceArrays& arrays, const SharedShard& shard, std::size_t number) {
  if (number == 0) return arrays.weights;
  --number;
  if (number < shard.slots()) return arrays.slots[number];
  number -= shard.slots();
  if (shard.has_mean_square() && number-- == 0) return arrays.mean_square;
  return arrays.vectors[number];
}

template <class T>
Result<std::string> encoded(const Result<T>& result) {
  STORMO_RETURN_IF_ERROR(result.status());
  return encode(*result);
}

}  // namespace

void RequestExecutor::Answer::conclude(const Result<std::string>& outcome) {
  bytes.set_head(encode(transport::reply_of(id, outcome)));
}

RequestExecutor::RequestExecutor(const HostedRun& run, int worker)
    : worker_(worker),
      coordinates_(worker == run.coordinator()),
      shards_(
          run.shards_of(worker, ShardWait{.policy = {}, .status = [this] { return status_(); }})),
      ledger_(run.ledger_of(worker, [this] { return status_(); })),
      answers_(shards_.size() + 1),
      parts_(shards_.size()) {
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    // without memory they are refused
    auto memory = transport::MemoryFile::anonymous(bytes_of_pieces(*shards_[s]) + 1);
    if (memory.ok()) parts_[s].memory = std::move(*memory);
  }
}

bool RequestExecutor::fits(const DataRequest& request) const {
  if (coordinates_ ? !is_of_coordinator(request.op) : is_command(request.op)) return false;
  if (is_of_ledger(request.op)) return ledger_ != nullptr && request.given.empty();
  if (request.shard >= shards_.size()) return false;
  const std::size_t pieces = shards_[request.shard]->pieces().size();
  switch (request.op) {
    case DataOp::kPush: return request.given.size() == pieces;
    case DataOp::kPart:
      return request.given.size() == pieces && parts_[request.shard].memory.data() != nullptr;
    case DataOp::kExchange: return request.given == std::string(pieces, '\1');
    case DataOp::kSet:
      return request.piece < pieces && request.given.size() == arrays_of(shard(request));
    case DataOp::kLose:
    case DataOp::kComeBack:
    case DataOp::kElect: return false;
    default: return request.given.empty();
  }
}

Status RequestExecutor::misfit() {
  return {Code::kCorrupt, "server protocol: a request that does not fit the shard"};
}

Result<Payload> RequestExecutor::receive(transport::Channel& socket, const DataRequest& request,
                                         std::byte* memory) const {
  if (!fits(request)) return misfit();
  Payload payload;
  if (request.given.find_first_not_of(kNotGiven) == std::string::npos) return payload;
  if (memory == nullptr) return Status(Code::kExhausted, "no memory for gradients");
  const bool is_part = request.op == DataOp::kPart;
  if (is_part) memory = parts_[request.shard].memory.data();
  const std::vector<ShardPiece>& pieces = shard(request).pieces();
  std::size_t before = 0;  // of the pieces before this one
  for (std::size_t i = 0; i < request.given.size(); ++i) {
    const ShardPiece& piece = pieces[request.op == DataOp::kSet ? request.piece : i];
    PushedPiece& array = payload.arrays.emplace_back();
    std::size_t bytes = 0;
    if (request.given[i] == kArrayGiven) {
      array.array = memory;
      bytes = piece.bytes();
    } else if (request.given[i] == kSentBefore) {
      array.array = parts_[request.shard].memory.data() + before;
    } else if (request.given[i] == kRowsGiven) {
      const auto [count, length] = request.rows[i];
      if (count > piece.elements() / length) return misfit();
      const auto list = static_cast<std::size_t>(count) * sizeof(std::int64_t);
      array.rows = {.indices = {reinterpret_cast<const std::int64_t*>(memory),
                                static_cast<std::size_t>(count)},
                    .row_length = length,
                    .values = memory + list};
      bytes = list + static_cast<std::size_t>(count * length) * size_of(piece.dtype);
    }
    payload.bytes.add(memory, bytes);
    memory += is_part ? aligned_bytes(piece) : aligned(bytes);
    before += aligned_bytes(piece);
  }
  STORMO_RETURN_IF_ERROR(payload.bytes.receive_all(socket));
  return payload;
}

std::size_t RequestExecutor::largest_payload() const {
  std::size_t largest = 0;
  for (const auto& shard : shards_) {
    std::size_t arrays = 0, rows = 0;
    for (const ShardPiece& piece : shard->pieces()) {
      arrays += arrays_of(*shard) * aligned(piece.bytes());
      // of one element each
      rows += aligned(piece.bytes() +
                      static_cast<std::size_t>(piece.elements()) * sizeof(std::int64_t));
    }
    largest = std::max({largest, arrays, rows});
  }
  return largest;
}

Status RequestExecutor::wait_to(const DataRequest& request, Deadline by) const {
  if (request.op == DataOp::kRead) return shard(request).wait_to_read(by);
  if (request.op == DataOp::kPush) return shard(request).wait_to_push(request.push.sequence, by);
  return {};
}

void RequestExecutor::forget() {
  for (Answer& answer : answers_) answer = {};
  for (Parts& parts : parts_) parts.has.clear();
}

Result<std::string> RequestExecutor::execute(const DataRequest& request, const Payload& payload,
                                             Answer& answer, Deadline by) {
  if (is_of_ledger(request.op)) return ask_ledger(request, by);
  SharedShard& of = shard(request);
  switch (request.op) {
    case DataOp::kRead:
    case DataOp::kLook: return read(request, answer, by);
    case DataOp::kPush: {
      const bool was_sent = request.given.find(kSentBefore) != std::string::npos;
      if (was_sent && !has_parts(request)) {
        return Status(Code::kNotFound, "the server does not have the parts that were sent before");
      }
      PushedGradient gradient = request.push;
      gradient.pieces = payload.arrays;
      return encoded(of.push(gradient, by));
    }
    case DataOp::kPart: take_part(request); return std::string();
    case DataOp::kExchange: return elastic_average(request, payload, answer, by);
    case DataOp::kSave: return save(request, answer);
    case DataOp::kSet: STORMO_RETURN_IF_ERROR(set(request, payload)); return std::string();
    case DataOp::kLeave: return encoded(of.leave(request.push.lr));
    case DataOp::kRun: {
      STORMO_ASSIGN_OR_RETURN(const auto program, decode<optim::VectorProgram>(request.program));
      return encoded(of.run(program));
    }
    case DataOp::kJoin: return encoded(of.join());
    default: return encode(of.current_state());
  }
}

/// Its gradients are where the push finds them.
void RequestExecutor::take_part(const DataRequest& request) {
  Parts& parts = parts_[request.shard];
  const std::size_t pieces = request.given.size();
  const std::uint64_t sequence = request.push.sequence;
  if (parts.has.empty() || parts.sequence != sequence) parts.has.assign(pieces, 0);
  parts.sequence = sequence;
  for (std::size_t i = 0; i < pieces; ++i) {
    if (request.given[i] == kArrayGiven) parts.has[i] = 1;
  }
}

/// Whether all that a push counts on was sent before it.
bool RequestExecutor::has_parts(const DataRequest& request) const {
  const Parts& parts = parts_[request.shard];
  if (parts.has.empty() || parts.sequence != request.push.sequence) return false;
  for (std::size_t i = 0; i < request.given.size(); ++i) {
    if (request.given[i] == kSentBefore && parts.has[i] == 0) return false;
  }
  return true;
}

Result<std::string> RequestExecutor::read(const DataRequest& request, Answer& answer, Deadline by) {
  SharedShard& of = shard(request);
  STORMO_ASSIGN_OR_RETURN(const Shard::View view,
                          request.op == DataOp::kRead ? of.read(by) : of.look());
  ViewHead head{.version = view.version, .commit = view.commit};
  if (request.version && take_changes(request, view, answer, head)) return encode(head);
  for (std::size_t i = 0; i < of.pieces().size(); ++i) {
    answer.bytes.add(view.pieces[i], of.pieces()[i].bytes());
  }
  return encode(head);
}

// Where much has changed, arrays are sent as they lie, without a copy: then false.
bool RequestExecutor::take_changes(const DataRequest& request, const Shard::View& view,
                                   Answer& answer, ViewHead& head) const {
  const std::vector<ShardPiece>& pieces = shard(request).pieces();
  const std::vector<ChangedRange> ranges = shard(request).changed_since(*request.version);
  const auto bytes_of = [&pieces](std::uint64_t piece, std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(pieces[piece].dtype);
  };
  const std::size_t list = ranges.size() * sizeof(ChangedRange);
  std::size_t changed = 0, all = 0;
  for (const ChangedRange& r : ranges) changed += bytes_of(r.piece, r.end - r.begin);
  for (const ShardPiece& piece : pieces) all += piece.bytes();
  if (list + changed > all / 2) return false;
  answer.values.resize(list + changed);
  std::byte* to = answer.values.data();
  if (list > 0) std::memcpy(to, ranges.data(), list);
  to += list;
  for (const ChangedRange& r : ranges) {
    const std::size_t bytes = bytes_of(r.piece, r.end - r.begin);
    std::memcpy(to, view.pieces[r.piece] + bytes_of(r.piece, r.begin), bytes);
    to += bytes;
  }
  answer.bytes.add(answer.values.data(), answer.values.size());
  head.has_changes = true;
  head.ranges = ranges.size();
  head.bytes = changed;
  return true;
}

// The new values are kept with the answer: another shard's gradient may be received before the
// worker asks for them again.
Result<std::string> RequestExecutor::elastic_average(const DataRequest& request,
                                                     const Payload& payload, Answer& answer,
                                                     Deadline by) {
  const std::vector<ShardPiece>& pieces = shard(request).pieces();
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto* values = static_cast<const std::byte*>(payload.arrays[i].array);
    offsets.push_back(answer.values.size());
    answer.values.insert(answer.values.end(), values, values + pieces[i].bytes());
  }
  std::vector<void*> own;
  for (const std::size_t offset : offsets) own.push_back(answer.values.data() + offset);
  const Result<Shard::Pushed> pushed =
      shard(request).elastic_average(own, request.alpha, request.push.sequence, by);
  if (!pushed.ok()) {
    answer.values.clear();
    return pushed.status();
  }
  answer.bytes.add(answer.values.data(), answer.values.size());
  return encode(*pushed);
}

// The state of the optimizer stays what it is during save() only, and a slow worker must not keep
// others from pushing: it is copied.
Result<std::string> RequestExecutor::save(const DataRequest& request, Answer& answer) {
  SharedShard& of = shard(request);
  const std::size_t arrays = arrays_of(of);
  std::size_t bytes = 0;
  for (const ShardPiece& piece : of.pieces()) bytes += arrays * piece.bytes();
  STORMO_ASSIGN_OR_RETURN(answer.saved, transport::MemoryFile::anonymous(bytes + 1));
  ViewHead head;
  std::size_t offset = 0;
  STORMO_ASSIGN_OR_RETURN(
      const Shard::View view, of.save([&](std::size_t piece, PieceArrays values) {
        const std::size_t of_piece = of.pieces()[piece].bytes();
        for (std::size_t a = 0; a < arrays; ++a, offset += of_piece) {
          std::memcpy(answer.saved.data() + offset, array_of(values, of, a), of_piece);
        }
        head.updates.push_back(values.updates);
      }));
  head.version = view.version;
  head.commit = view.commit;
  answer.bytes.add(answer.saved.data(), offset);
  return encode(head);
}

Status RequestExecutor::set(const DataRequest& request, const Payload& payload) {
  SharedShard& of = shard(request);
  PieceArrays values{.slots = {}, .updates = request.updates};
  values.vectors.resize(of.vectors());
  for (std::size_t a = 0; a < payload.arrays.size(); ++a) {
    const void* const given = payload.arrays[a].array;
    if (given != nullptr)
      array_of(values, of, a) = static_cast<std::byte*>(const_cast<void*>(given));
  }
  return of.set(request.piece, values);
}

Result<std::string> RequestExecutor::ask_ledger(const DataRequest& request, Deadline by) {
  switch (request.op) {
    case DataOp::kDeal: STORMO_RETURN_IF_ERROR(ledger_->deal(request.terms)); break;
    case DataOp::kStop: STORMO_RETURN_IF_ERROR(ledger_->stop(request.signal)); break;
    case DataOp::kAdvance: STORMO_RETURN_IF_ERROR(ledger_->advance(request.step)); break;
    case DataOp::kLeaveLedger: STORMO_RETURN_IF_ERROR(ledger_->leave()); break;
    case DataOp::kWait: STORMO_RETURN_IF_ERROR(ledger_->wait(by)); break;
    case DataOp::kTerms: return encoded(ledger_->terms());
    case DataOp::kNext: return encoded(ledger_->next(request.outcome));
    default: return encoded(ledger_->look());
  }
  return std::string();
}

}  // namespace stormo::server
