#include <stormo/server/client/remote_shard.h>

#include <cstring>
#include <utility>

#include <stormo/optim/lbfgs.h>
#include <stormo/server/shard/change_stamps.h>
#include <stormo/server/shard/shard_update.h>

namespace stormo::server {

Result<std::unique_ptr<Shard>> RemoteShard::create(std::shared_ptr<DataLink> link,
                                                   std::uint32_t number,
                                                   std::vector<ShardPiece> pieces,
                                                   const ShardOptions& options) {
  std::unique_ptr<RemoteShard> shard(
      new RemoteShard(std::move(link), number, std::move(pieces), options));
  const std::size_t bytes = shard->offsets_.back();
  for (transport::MemoryFile& copy : shard->copies_) {
    STORMO_ASSIGN_OR_RETURN(copy, transport::MemoryFile::anonymous(bytes + 1));
  }
  return std::unique_ptr<Shard>(std::move(shard));
}

RemoteShard::RemoteShard(std::shared_ptr<DataLink> link, std::uint32_t number,
                         std::vector<ShardPiece> pieces, const ShardOptions& options)
    : link_(std::move(link)),
      number_(number),
      pieces_(std::move(pieces)),
      slots_(optim::slot_names(options.optimizer).size()),
      vectors_(optim::Lbfgs::vectors(options.optimizer)),
      has_mean_square_(options.policy->delay_compensation().is_adaptive) {
  offsets_.push_back(0);
  for (const ShardPiece& piece : pieces_)
    offsets_.push_back(offsets_.back() + aligned_bytes(piece));
}

// What was begun has borrowed memory.
RemoteShard::~RemoteShard() { drain(); }

void RemoteShard::drain() {
  arrived_.reset();
  if (read_) (void)link_->wait(*std::exchange(read_, nullptr));
  for (const auto& part : std::exchange(parts_, {})) (void)link_->wait(*part);
  if (push_) (void)link_->wait(*std::exchange(push_, nullptr));
}

DataRequest RemoteShard::request(DataOp op, Deadline by) const {
  return {.op = op, .shard = number_, .patience_ns = patience_of(by), .given = {}};
}

std::byte* RemoteShard::weights(std::size_t piece) const {
  return copies_[next_copy_].data() + offsets_[piece];
}

Status RemoteShard::set(std::size_t piece, const PieceArrays& values) {
  DataRequest asked = request(DataOp::kSet);
  asked.piece = piece;
  asked.updates = values.updates;
  ByteRanges payload;
  const auto add = [&](const std::byte* array) {
    asked.given += array == nullptr ? kNotGiven : kArrayGiven;
    if (array != nullptr) payload.add(array, pieces_[piece].bytes());
  };
  add(values.weights);
  for (std::size_t s = 0; s < slots_; ++s) add(values.slots[s]);
  if (has_mean_square_) add(values.mean_square);
  for (std::size_t v = 0; v < vectors_; ++v) {
    add(v < values.vectors.size() ? values.vectors[v] : nullptr);
  }
  return link_->call(std::move(asked), std::move(payload)).status();
}

ByteRanges RemoteShard::all_weights() const {
  ByteRanges all;
  for (std::size_t i = 0; i < pieces_.size(); ++i) all.add(weights(i), pieces_[i].bytes());
  return all;
}

std::shared_ptr<DataCall> RemoteShard::start_view(DataRequest asked) {
  asked.version = versions_[next_copy_];
  return link_->start(std::move(asked), {}, {},
                      [this](std::string_view reply) { return place_view(reply); });
}

Result<ByteRanges> RemoteShard::place_view(std::string_view reply) {
  STORMO_ASSIGN_OR_RETURN(const ViewHead head, decode<ViewHead>(reply));
  comes_whole_ = !head.has_changes;
  if (!head.has_changes) {
    versions_[next_copy_].reset();
    return all_weights();
  }
  if (head.bytes > offsets_.back() || head.ranges > head.bytes) {
    return Status(Code::kCorrupt, "server protocol: more changes than weights");
  }
  changes_.resize(head.ranges * sizeof(ChangedRange) + head.bytes);
  ByteRanges sink;
  sink.add(changes_.data(), changes_.size());
  return sink;
}

Status RemoteShard::apply_changes(const ViewHead& head) {
  const Status misfit(Code::kCorrupt, "server protocol: changes that do not fit the weights");
  if (!versions_[next_copy_]) return misfit;
  const std::byte* values = changes_.data() + head.ranges * sizeof(ChangedRange);
  std::size_t left = head.bytes;
  for (std::size_t i = 0; i < head.ranges; ++i) {
    ChangedRange r;
    std::memcpy(&r, changes_.data() + i * sizeof r, sizeof r);
    if (r.piece >= pieces_.size() || r.begin < 0 || r.end < r.begin ||
        r.end > pieces_[r.piece].elements()) {
      return misfit;
    }
    const std::size_t size = size_of(pieces_[r.piece].dtype);
    const std::size_t bytes = static_cast<std::size_t>(r.end - r.begin) * size;
    if (bytes > left) return misfit;
    std::memcpy(weights(r.piece) + static_cast<std::size_t>(r.begin) * size, values, bytes);
    values += bytes;
    left -= bytes;
  }
  return left == 0 ? Status() : misfit;
}

Result<Shard::View> RemoteShard::take_view(std::string_view reply) {
  STORMO_ASSIGN_OR_RETURN(const ViewHead head, decode<ViewHead>(reply));
  if (head.has_changes) STORMO_RETURN_IF_ERROR(apply_changes(head));
  versions_[next_copy_] = head.version;
  View view{.version = head.version, .commit = head.commit, .pieces = {}};
  for (std::size_t i = 0; i < pieces_.size(); ++i) view.pieces.push_back(weights(i));
  next_copy_ = 1 - next_copy_;
  return view;
}

void RemoteShard::begin_read(Deadline by) {
  if (!read_ && !arrived_) read_ = start_view(request(DataOp::kRead, by));
}

Result<Shard::View> RemoteShard::read(Deadline by) {
  if (arrived_) return *std::exchange(arrived_, {});
  begin_read(by);
  const auto call = std::exchange(read_, nullptr);
  STORMO_RETURN_IF_ERROR(link_->wait(*call));
  return take_view(call->body);
}

Result<const std::byte*> RemoteShard::arrival(std::size_t piece) {
  if (arrived_) return arrived_->pieces[piece];
  begin_read(Deadline::never());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i <= piece; ++i) bytes += pieces_[i].bytes();
  STORMO_RETURN_IF_ERROR(link_->wait(*read_, bytes));
  if (comes_whole_) return weights(piece);
  // of all pieces together what has changed
  STORMO_ASSIGN_OR_RETURN(arrived_, read(Deadline::never()));
  return arrived_->pieces[piece];
}

Result<Shard::View> RemoteShard::look() {
  const auto call = start_view(request(DataOp::kLook));
  STORMO_RETURN_IF_ERROR(link_->wait(*call));
  return take_view(call->body);
}

Result<Shard::View> RemoteShard::save(
    const std::function<void(std::size_t piece, const PieceArrays&)>& copy) {
  const std::size_t means = has_mean_square_ ? 1 : 0, arrays = slots_ + means + vectors_;
  STORMO_ASSIGN_OR_RETURN(const auto state,
                          transport::MemoryFile::anonymous(arrays * offsets_.back() + 1));
  // slots, the mean square, then vectors
  const auto array = [&](std::size_t number, std::size_t piece) {
    return state.data() + number * offsets_.back() + offsets_[piece];
  };
  versions_[next_copy_].reset();
  ByteRanges sink;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    sink.add(weights(i), pieces_[i].bytes());
    for (std::size_t a = 0; a < arrays; ++a) sink.add(array(a, i), pieces_[i].bytes());
  }
  STORMO_ASSIGN_OR_RETURN(const std::string reply,
                          link_->call(request(DataOp::kSave), {}, std::move(sink)));
  STORMO_ASSIGN_OR_RETURN(const ViewHead head, decode<ViewHead>(reply));
  if (head.updates.size() != pieces_.size() || head.has_changes) {
    return Status(Code::kCorrupt, "server protocol: a saved shard with other pieces");
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    PieceArrays values{.weights = weights(i), .slots = {}, .updates = head.updates[i]};
    for (std::size_t s = 0; s < slots_; ++s) values.slots[s] = array(s, i);
    if (has_mean_square_) values.mean_square = array(slots_, i);
    for (std::size_t v = 0; v < vectors_; ++v) {
      values.vectors.push_back(array(slots_ + means + v, i));
    }
    copy(i, values);
  }
  return take_view(reply);
}

void RemoteShard::begin_part(const PushedGradient& gradient, std::span<const std::size_t> pieces) {
  DataRequest asked = request(DataOp::kPart);
  asked.push.sequence = gradient.sequence;
  asked.given.assign(pieces_.size(), kNotGiven);
  for (const std::size_t i : pieces) asked.given[i] = kArrayGiven;
  ByteRanges payload;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (asked.given[i] == kArrayGiven) payload.add(gradient.pieces[i].array, pieces_[i].bytes());
  }
  parts_.push_back(link_->start(std::move(asked), std::move(payload)));
}

void RemoteShard::begin_push(const PushedGradient& gradient, Deadline by) {
  if (push_ && push_->request.push.sequence == gradient.sequence) return;
  if (push_) (void)link_->wait(*push_);  // of a call that did not follow
  push_.reset();
  if (!check_rows(pieces_, gradient).ok()) return;  // push() says why
  DataRequest asked{.op = DataOp::kPush,
                    .shard = number_,
                    .patience_ns = patience_of(by),
                    .push = gradient,
                    .given = {}};
  asked.push.pieces = {};
  ByteRanges payload;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto [array, rows, is_sent] = gradient.piece(i);
    asked.given += array != nullptr      ? is_sent ? kSentBefore : kArrayGiven
                   : rows.row_length > 0 ? kRowsGiven
                                         : kNotGiven;
    if (asked.given.back() == kArrayGiven) payload.add(array, pieces_[i].bytes());
    if (asked.given.back() != kRowsGiven) continue;
    asked.rows.resize(pieces_.size());
    asked.rows[i] = {std::ssize(rows.indices), rows.row_length};
    payload.add(rows.indices.data(), rows.indices.size_bytes());
    payload.add(rows.values, rows.indices.size() * static_cast<std::size_t>(rows.row_length) *
                                 size_of(pieces_[i].dtype));
  }
  push_ = link_->start(std::move(asked), std::move(payload));
}

Result<Shard::Pushed> RemoteShard::push(const PushedGradient& gradient, Deadline by) {
  begin_push(gradient, by);
  if (!push_) {  // parts that were sent before are borrowed until they have arrived
    for (const auto& part : std::exchange(parts_, {})) (void)link_->wait(*part);
    return check_rows(pieces_, gradient);
  }
  auto call = std::exchange(push_, nullptr);
  Status status = link_->wait(*call);
  parts_.clear();                          // replies come in order
  if (status.code() == Code::kNotFound) {  // the server has forgotten the parts
    std::vector<PushedPiece> pieces(gradient.pieces.begin(), gradient.pieces.end());
    for (PushedPiece& piece : pieces) piece.is_sent = false;
    PushedGradient whole = gradient;
    whole.pieces = pieces;
    begin_push(whole, by);
    call = std::exchange(push_, nullptr);
    status = link_->wait(*call);
  }
  STORMO_RETURN_IF_ERROR(status);
  return decode<Pushed>(call->body);
}

// The new values come into the copy that is not in use: until they are all there, the worker's own
// ones stay what they are, and may be sent again.
Result<Shard::Pushed> RemoteShard::elastic_average(std::span<void* const> own, double alpha,
                                                   std::uint64_t sequence, Deadline by) {
  DataRequest asked = request(DataOp::kExchange, by);
  asked.push.sequence = sequence;
  asked.alpha = alpha;
  asked.given.assign(pieces_.size(), kArrayGiven);
  ByteRanges payload;
  for (std::size_t i = 0; i < pieces_.size(); ++i) payload.add(own[i], pieces_[i].bytes());
  versions_[next_copy_].reset();
  STORMO_ASSIGN_OR_RETURN(const std::string reply,
                          link_->call(std::move(asked), std::move(payload), all_weights()));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    std::memcpy(own[i], weights(i), pieces_[i].bytes());
  }
  return decode<Pushed>(reply);
}

Result<std::uint64_t> RemoteShard::leave(double lr) {
  drain();
  DataRequest asked = request(DataOp::kLeave);
  asked.push.lr = lr;
  return link_->ask<std::uint64_t>(std::move(asked));
}

Result<Shard::Joined> RemoteShard::join() {
  drain();
  return link_->ask<Joined>(request(DataOp::kJoin));
}

Result<protocol::ShardState> RemoteShard::state() const {
  return link_->ask<protocol::ShardState>(request(DataOp::kState));
}

}  // namespace stormo::server
