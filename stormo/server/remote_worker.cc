#include <stormo/server/remote_worker.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <stormo/server/server_message.h>

namespace stormo::server {
namespace {

constexpr std::size_t kLengthBytes = 4;

bool is_of_ledger(DataOp op) { return op >= DataOp::kDeal && op <= DataOp::kLeaveLedger; }
/// Doing it again changes nothing, so its answer is not kept.
bool is_harmless(DataOp op) {
  return op == DataOp::kLook || op == DataOp::kSave || op == DataOp::kState ||
         op == DataOp::kTerms || op == DataOp::kLookAtLedger;
}

Deadline deadline_of(const DataRequest& request) {
  return request.patience_ns < 0 ? Deadline::never()
                                 : Deadline::after(Duration(request.patience_ns));
}

std::string frame_of(std::uint64_t id, const Result<std::string>& outcome) {
  const std::string head =
      encode(DataReply{.id = id,
                       .code = outcome.status().code(),
                       .body = outcome.ok() ? std::string_view(*outcome)
                                            : std::string_view(outcome.status().message())});
  return frame(head);
}

}  // namespace

RemoteWorker::RemoteWorker(HostedRun& run, int worker)
    : shards_(
          run.shards_of(worker, ShardWait{.policy = {}, .status = [this] { return cancelled(); }})),
      ledger_(run.ledger_of(worker)),
      answers_(shards_.size() + 1) {
  std::size_t largest = 0;
  for (const auto& shard : shards_) {
    std::size_t bytes = 0;
    for (const ShardPiece& piece : shard->pieces()) bytes += aligned_bytes(piece);
    largest = std::max(largest, bytes);
  }
  const std::size_t arrays = 1 + optim::kMaxSlots;
  // without memory every payload is refused
  if (auto memory = transport::MemoryFile::anonymous(largest * arrays + 1); memory.ok()) {
    staging_ = std::move(*memory);
  }
}

RemoteWorker::~RemoteWorker() {
  cut();
  if (thread_.joinable()) thread_.join();
}

void RemoteWorker::attach(transport::Descriptor socket,
                          std::function<void(const Status&)> on_nonsense) {
  cut();
  const int flags = ::fcntl(socket.get(), F_GETFL);
  (void)::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
  connection_ = std::make_shared<Connection>();
  connection_->socket = std::move(socket);
  connection_->on_nonsense = std::move(on_nonsense);
  running_.fetch_add(1);
  thread_ = std::thread([this, before = std::move(thread_), connection = connection_]() mutable {
    if (before.joinable()) before.join();
    serve(std::move(connection));
    running_.fetch_sub(1);
  });
}

void RemoteWorker::cut() {
  if (!connection_) return;
  connection_->is_cut = true;
  (void)::shutdown(connection_->socket.get(), SHUT_RDWR);
}

void RemoteWorker::forget() { std::ranges::fill(answers_, Answer{}); }

Status RemoteWorker::cancelled() const {
  if (!serving_->is_cut) return {};
  return Status(Code::kCancelled, "the connection of the worker was cut");
}

void RemoteWorker::serve(std::shared_ptr<Connection> connection) {
  serving_ = std::move(connection);
  Status status;
  while (status.ok() && !serving_->is_cut) status = serve_one(serving_->socket.get());
  (void)::shutdown(serving_->socket.get(), SHUT_RDWR);
  if (status.code() == Code::kCorrupt) serving_->on_nonsense(status);
}

/// Executes one request. A failure ends the connection.
Status RemoteWorker::serve_one(int fd) {
  STORMO_ASSIGN_OR_RETURN(const DataRequest request, receive_request(fd));
  STORMO_RETURN_IF_ERROR(receive_payload(fd, request));
  if (request.op == DataOp::kSave) return send_saved(fd, request);
  Answer& last = answers_[is_of_ledger(request.op) ? shards_.size() : request.shard];
  if (last.id == request.id && request.id != 0) return send(fd, last, request.shard);
  Answer answer{.id = request.id, .frame = {}, .view = {}};
  const Result<std::string> outcome = execute(request, answer);
  if (outcome.status().code() == Code::kCancelled) return outcome.status();
  answer.frame = frame_of(request.id, outcome);
  if (is_harmless(request.op)) return send(fd, answer, request.shard);
  last = std::move(answer);
  return send(fd, last, request.shard);
}

Result<DataRequest> RemoteWorker::receive_request(int fd) {
  std::uint32_t length = 0;
  ByteRanges prefix;
  prefix.add(&length, kLengthBytes);
  STORMO_RETURN_IF_ERROR(prefix.receive_all(fd));
  if (length > kMaxControlBytes) {
    return Status(Code::kCorrupt, fmt::format("server protocol: a head of {} B, at most {} are "
                                              "allowed",
                                              length, kMaxControlBytes));
  }
  // grows with what has arrived
  std::string head;
  while (head.size() < length) {
    const std::size_t have = head.size();
    head.resize(std::min<std::size_t>(length, have + (64 << 10)));
    ByteRanges part;
    part.add(head.data() + have, head.size() - have);
    STORMO_RETURN_IF_ERROR(part.receive_all(fd));
  }
  STORMO_ASSIGN_OR_RETURN(DataRequest request, decode_data_request(head));
  if (!fits(request)) {
    return Status(Code::kCorrupt, "server protocol: a request that does not fit the shard");
  }
  return request;
}

bool RemoteWorker::fits(const DataRequest& request) const {
  if (is_of_ledger(request.op)) return ledger_ != nullptr && request.given.empty();
  if (request.shard >= shards_.size()) return false;
  const std::size_t pieces = shards_[request.shard]->pieces().size();
  switch (request.op) {
    case DataOp::kPush: return request.given.size() == pieces;
    case DataOp::kExchange: return request.given == std::string(pieces, '\1');
    case DataOp::kSet:
      return request.count < pieces && request.given.size() == 1 + optim::kMaxSlots &&
             request.given.find('\1', 1 + shards_[request.shard]->slots()) == std::string::npos;
    default: return request.given.empty();
  }
}

/// Into staging_: each array that is given, at a multiple of a cache line.
Status RemoteWorker::receive_payload(int fd, const DataRequest& request) {
  if (request.given.find('\1') == std::string::npos) return {};
  if (staging_.data() == nullptr) return Status(Code::kExhausted, "no memory for gradients");
  const std::vector<ShardPiece>& pieces = shard(request).pieces();
  ByteRanges ranges;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < request.given.size(); ++i) {
    const ShardPiece& piece = pieces[request.op == DataOp::kSet ? request.count : i];
    if (request.given[i] == 0) continue;
    ranges.add(staging_.data() + offset, piece.bytes());
    offset += aligned_bytes(piece);
  }
  return ranges.receive_all(fd);
}

Status RemoteWorker::send(int fd, const Answer& answer, std::uint32_t shard) {
  ByteRanges ranges;
  ranges.add(answer.frame.data(), answer.frame.size());
  if (answer.view) {
    const std::vector<ShardPiece>& pieces = shards_[shard]->pieces();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      ranges.add(answer.view->pieces[i], pieces[i].bytes());
    }
  }
  ranges.add(answer.values.data(), answer.values.size());
  return ranges.send_all(fd);
}

// The state of the optimizer stays what it is during save() only, and a slow worker must not keep
// others from pushing: it is copied.
Status RemoteWorker::send_saved(int fd, const DataRequest& request) {
  SharedShard& of = shard(request);
  const std::size_t arrays = 1 + of.slots();
  std::size_t bytes = 0;
  for (const ShardPiece& piece : of.pieces()) bytes += arrays * piece.bytes();
  STORMO_ASSIGN_OR_RETURN(const auto copies, transport::MemoryFile::anonymous(bytes + 1));
  ViewHead head;
  std::size_t offset = 0;
  const Result<Shard::View> view = of.save([&](std::size_t piece, const PieceArrays& values) {
    const std::size_t of_piece = of.pieces()[piece].bytes();
    for (std::size_t a = 0; a < arrays; ++a, offset += of_piece) {
      std::memcpy(copies.data() + offset, a == 0 ? values.weights : values.slots[a - 1], of_piece);
    }
    head.updates.push_back(values.updates);
  });
  if (view.status().code() == Code::kCancelled) return view.status();
  Result<std::string> outcome = view.status();
  if (view.ok()) {
    head.version = view->version;
    head.commit = view->commit;
    outcome = encode(head);
  }
  const std::string answer = frame_of(request.id, outcome);
  ByteRanges ranges;
  ranges.add(answer.data(), answer.size());
  if (view.ok()) ranges.add(copies.data(), offset);
  return ranges.send_all(fd);
}

Result<std::string> RemoteWorker::execute(const DataRequest& request, Answer& answer) {
  if (is_of_ledger(request.op)) return ask_ledger(request);
  SharedShard& of = shard(request);
  switch (request.op) {
    case DataOp::kRead:
    case DataOp::kLook: {
      STORMO_ASSIGN_OR_RETURN(
          answer.view, request.op == DataOp::kRead ? of.read(deadline_of(request)) : of.look());
      return encode(ViewHead{.version = answer.view->version, .commit = answer.view->commit});
    }
    case DataOp::kPush: return push(request);
    case DataOp::kExchange: return exchange(request, answer);
    case DataOp::kSet: STORMO_RETURN_IF_ERROR(set(request)); return std::string();
    case DataOp::kLeave: {
      STORMO_ASSIGN_OR_RETURN(const std::uint64_t commit, of.leave(request.number));
      return encode_count(commit);
    }
    case DataOp::kJoin: {
      STORMO_ASSIGN_OR_RETURN(const Shard::Joined joined, of.join());
      return encode(joined);
    }
    default: return encode(of.current_state());
  }
}

Result<std::string> RemoteWorker::push(const DataRequest& request) {
  const std::vector<ShardPiece>& pieces = shard(request).pieces();
  std::vector<const void*> gradients(pieces.size());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (request.given[i] == 0) continue;
    gradients[i] = staging_.data() + offset;
    offset += aligned_bytes(pieces[i]);
  }
  STORMO_ASSIGN_OR_RETURN(const Shard::Pushed pushed,
                          shard(request).push({.pieces = gradients,
                                               .lr = request.number,
                                               .gradient_scale = request.gradient_scale,
                                               .weight = request.weight,
                                               .sequence = request.count},
                                              deadline_of(request)));
  return encode(pushed);
}

// The new values are kept with the answer: another shard's gradient may be received before the
// worker asks for them again.
Result<std::string> RemoteWorker::exchange(const DataRequest& request, Answer& answer) {
  std::vector<void*> own;
  std::size_t offset = 0;
  for (const ShardPiece& piece : shard(request).pieces()) {
    own.push_back(staging_.data() + offset);
    offset += aligned_bytes(piece);
  }
  STORMO_ASSIGN_OR_RETURN(
      const Shard::Pushed pushed,
      shard(request).exchange(own, request.number, request.count, deadline_of(request)));
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto* const values = static_cast<const std::byte*>(own[i]);
    answer.values.insert(answer.values.end(), values, values + shard(request).pieces()[i].bytes());
  }
  return encode(pushed);
}

Status RemoteWorker::set(const DataRequest& request) {
  const std::size_t stride = aligned_bytes(shard(request).pieces()[request.count]);
  PieceArrays values{.weights = nullptr, .slots = {}, .updates = request.updates};
  std::size_t offset = 0;
  for (std::size_t a = 0; a < request.given.size(); ++a) {
    if (request.given[a] == 0) continue;
    (a == 0 ? values.weights : values.slots[a - 1]) = staging_.data() + offset;
    offset += stride;
  }
  return shard(request).set(request.count, values);
}

Result<std::string> RemoteWorker::ask_ledger(const DataRequest& request) {
  switch (request.op) {
    case DataOp::kDeal: STORMO_RETURN_IF_ERROR(ledger_->deal(request.terms)); break;
    case DataOp::kStop:
      STORMO_RETURN_IF_ERROR(ledger_->stop(static_cast<int>(request.count)));
      break;
    case DataOp::kLeaveLedger: STORMO_RETURN_IF_ERROR(ledger_->leave()); break;
    case DataOp::kWait:
      STORMO_RETURN_IF_ERROR(ledger_->wait(deadline_of(request), [this] { return cancelled(); }));
      break;
    case DataOp::kTerms: {
      STORMO_ASSIGN_OR_RETURN(const Ledger::Terms terms, ledger_->terms());
      return encode(terms);
    }
    default: {
      STORMO_ASSIGN_OR_RETURN(const Ledger::Turn turn, request.op == DataOp::kNext
                                                           ? ledger_->next(request.outcome)
                                                           : ledger_->look());
      return encode(turn);
    }
  }
  return std::string();
}

}  // namespace stormo::server
