#include <fmt/format.h>
#include <stormo/base/check.h>
#include <stormo/base/units.h>
#include <stormo/transport/tcp/link.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace stormo::transport {
namespace {

constexpr std::size_t kMaxBatch = 16;                     // messages in one system call
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;  // then the other direction has its turn

iovec part(const std::byte* data, std::size_t bytes) {
  return {const_cast<std::byte*>(data), bytes};
}

}  // namespace

Connection::Connection(Rank peer, Channel socket, Epoch epoch, bool checksum)
    : peer_(peer),
      socket_(std::move(socket)),
      epoch_(epoch),
      checksum_(checksum),
      staging_(std::make_unique<std::byte[]>(kStagingBytes)) {}

void Connection::clear() {
  STORMO_CHECK(!busy(), "a link is cleared while it is busy");
  sends_.clear();
  receives_.clear();
  next_send_ = prepared_ = next_receive_ = 0;
}

void Connection::prepare(Send& send) {
  FrameHeader h;
  h.epoch = epoch_;
  h.sequence = send_sequence_++;
  h.tag = send.message.tag;
  h.length = send.message.bytes.size();
  h.has_checksum = checksum_;
  if (checksum_) h.checksum = checksum_of(send.message.bytes);
  send.header = encode(h);
}

Result<bool> Connection::send_some() {
  bool moved = false;
  for (std::size_t turn = 0; turn < kTurnBytes && sending();) {
    std::array<iovec, 2 * kMaxBatch> parts;
    std::size_t num_parts = 0;
    std::size_t bytes = 0;
    const std::size_t end = std::min(sends_.size(), next_send_ + kMaxBatch);
    for (std::size_t i = next_send_; i < end && bytes < kTurnBytes; ++i) {
      Send& s = sends_[i];
      if (i >= prepared_) {
        prepare(s);
        prepared_ = i + 1;
      }
      if (s.sent < kFrameHeaderBytes) {
        parts[num_parts++] = part(s.header.data() + s.sent, kFrameHeaderBytes - s.sent);
      }
      const std::size_t skip = s.sent - std::min(s.sent, kFrameHeaderBytes);
      const std::size_t left = s.message.bytes.size() - skip;
      if (left > 0) parts[num_parts++] = part(s.message.bytes.data() + skip, left);
      bytes += s.total() - s.sent;
    }
    const ssize_t n = socket_.send(std::span(parts).first(num_parts));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return lost("send to", errno);
    account_sent(static_cast<std::size_t>(n));
    moved = true;
    turn += static_cast<std::size_t>(n);
    if (static_cast<std::size_t>(n) < bytes) break;  // the socket is full
  }
  return moved;
}

void Connection::account_sent(std::size_t bytes) {
  while (sending()) {
    Send& s = sends_[next_send_];
    const std::size_t taken = std::min(bytes, s.total() - s.sent);
    s.sent += taken;
    bytes -= taken;
    if (s.sent < s.total()) return;
    ++next_send_;
  }
}

Result<bool> Connection::receive_some() {
  const std::size_t staged_before = staged_begin_;
  STORMO_RETURN_IF_ERROR(use_staged());
  bool moved = staged_begin_ != staged_before;
  for (std::size_t turn = 0; turn < kTurnBytes && receiving();) {
    STORMO_ASSIGN_OR_RETURN(const std::size_t n, read_socket());
    if (n == 0) break;
    moved = true;
    turn += n;
    STORMO_RETURN_IF_ERROR(use_staged());
    report_progress();
  }
  return moved;
}

void Connection::report_progress() const {
  if (!in_payload_) return;
  Progress* progress = receives_[next_receive_].progress;
  if (progress != nullptr) progress->received(received_);
}

/// Reads into the current payload and, behind it, ahead into the staging buffer; 0 when nothing has
/// come.
Result<std::size_t> Connection::read_socket() {
  if (staged_begin_ > 0) {  // a partial header at most: use_staged() takes everything else
    std::memmove(staging_.get(), staging_.get() + staged_begin_, staged_end_ - staged_begin_);
    staged_end_ -= staged_begin_;
    staged_begin_ = 0;
  }
  std::array<iovec, 2> parts;
  std::size_t num_parts = 0;
  std::size_t direct = 0;
  if (in_payload_) {
    const std::span<std::byte> rest = receives_[next_receive_].bytes.subspan(received_);
    direct = rest.size();
    parts[num_parts++] = part(rest.data(), direct);
  }
  parts[num_parts++] = part(staging_.get() + staged_end_, kStagingBytes - staged_end_);
  ssize_t n = 0;
  do {
    n = socket_.receive(std::span(parts).first(num_parts));
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return std::size_t{0};
  if (n < 0) return lost("receive from", errno);
  if (n == 0) return lost("receive from", 0);
  const std::size_t bytes = static_cast<std::size_t>(n);
  const std::size_t into_payload = std::min(bytes, direct);
  received_ += into_payload;
  staged_end_ += bytes - into_payload;
  return bytes;
}

Status Connection::use_staged() {
  while (receiving()) {
    const std::size_t staged = staged_end_ - staged_begin_;
    if (!in_payload_) {
      if (staged < kFrameHeaderBytes) return {};
      STORMO_RETURN_IF_ERROR(accept_header());
      continue;
    }
    const std::span<std::byte> payload = receives_[next_receive_].bytes;
    const std::size_t taken = std::min(staged, payload.size() - received_);
    if (taken > 0) std::memcpy(payload.data() + received_, staging_.get() + staged_begin_, taken);
    staged_begin_ += taken;
    received_ += taken;
    if (received_ < payload.size()) return {};
    STORMO_RETURN_IF_ERROR(complete_receive());
  }
  return {};
}

Status Connection::accept_header() {
  const std::span<const std::byte> bytes(staging_.get() + staged_begin_, kFrameHeaderBytes);
  const Result<FrameHeader> decoded = decode_frame_header(bytes);
  if (!decoded.ok()) return receive_error(decoded.status());
  header_ = *decoded;
  const Incoming& in = receives_[next_receive_];
  const Status checked =
      check_frame(header_, {epoch_, receive_sequence_, in.tag, in.bytes.size(), checksum_});
  if (!checked.ok()) return receive_error(checked);
  staged_begin_ += kFrameHeaderBytes;
  received_ = 0;
  in_payload_ = true;
  return {};
}

Status Connection::complete_receive() {
  const std::span<const std::byte> payload = receives_[next_receive_].bytes;
  if (header_.has_checksum) {
    const std::uint64_t sum = checksum_of(payload);
    if (sum != header_.checksum) {
      return receive_error(
          {Code::kCorrupt,
           fmt::format("payload has checksum {:#x}, sent was {:#x}", sum, header_.checksum)});
    }
  }
  Progress* progress = receives_[next_receive_].progress;
  if (progress != nullptr) progress->received(payload.size());
  ++next_receive_;
  ++receive_sequence_;
  in_payload_ = false;
  return {};
}

Status Connection::lost(const char* what, int error) const {
  std::string why = error == 0 ? "it closed the connection" : describe_socket_error(error);
  if (error == ETIMEDOUT) {
    why = "its host answers no more: the network between the hosts is cut, or that host is down";
  }
  return {Code::kPeerLost, fmt::format("{} rank {}: {}", what, peer_, why)};
}

Status Connection::check_line(TimePoint now, Duration limit) {
  const Duration owed = acknowledgements_.owed_for(fd(), now);
  if (owed < limit) return {};
  return {Code::kPeerLost,
          fmt::format("its host has acknowledged nothing for {}: the network between the hosts is "
                      "cut, or that host is down; {}",
                      format_duration(owed), describe_wait())};
}

Status Connection::receive_error(const Status& why) const {
  return why.within(fmt::format("receive #{} from rank {}", receive_sequence_, peer_));
}

std::string Connection::describe_wait() const {
  if (receiving()) {
    const Incoming& in = receives_[next_receive_];
    return fmt::format("receive #{} from rank {} (tag {:#x}): {} of {} bytes", receive_sequence_,
                       peer_, in.tag, in_payload_ ? received_ : 0, in.bytes.size());
  }
  const Send& s = sends_[next_send_];
  return fmt::format("send to rank {} (tag {:#x}): {} of {} bytes", peer_, s.message.tag,
                     s.sent - std::min(s.sent, kFrameHeaderBytes), s.message.bytes.size());
}

}  // namespace stormo::transport
