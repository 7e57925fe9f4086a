#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/comm/mailbox/message_record.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/tcp/frame.h>

namespace stormo::transport {

/// What goes wrong below the transport, which its checks must find.
enum class WireFault {
  kNone,
  kFlippedBit,     ///< in the middle of a payload
  kFlippedHeader,  ///< a bit of the number by which frames are counted
  kReordered,      ///< the frame comes after the next one, as when it was sent again
  kCut,            ///< the connection ends in the middle of the frame
};

/// A network that goes wrong once, at the given frame (counted from 0, of those with a payload, in
/// the order in which they pass): relays stand before the ranks' data ports. Records of messages
/// are frames, too.
class BadWire {
 public:
  BadWire(WireFault fault, int frame) : fault_(fault), frame_(frame) {}
  ~BadWire() {
    stopping_ = true;
    end_connections();
    for (std::thread& t : accepting_) t.join();
    end_connections();  // also those that came meanwhile
    for (std::thread& t : relaying_) t.join();
  }
  BadWire(const BadWire&) = delete;

  /// The relay for the rank that listens at `address`.
  std::string route(const std::string& address) {
    auto listener = listen_tcp({"127.0.0.1", 0}, {});
    const std::string here = local_address_of(listener->get())->to_string();
    const int fd = keep(std::move(*listener));
    ::fcntl(fd, F_SETFL, 0);  // blocking: the thread does nothing else
    accepting_.emplace_back([this, fd, address] { accept_all(fd, address); });
    return here;
  }
  bool happened() const { return happened_; }

 private:
  static constexpr std::size_t kHelloBytes = 64 + 32;  // what a client says before its first frame
  static constexpr std::size_t kWelcomeBytes = 80 + 40;  // what it is told

  int keep(Descriptor fd) {
    const std::lock_guard lock(mutex_);
    open_.push_back(std::move(fd));
    return open_.back().get();
  }
  void end_connections() {
    const std::lock_guard lock(mutex_);
    for (const Descriptor& d : open_) ::shutdown(d.get(), SHUT_RDWR);
  }

  void accept_all(int listener, const std::string& address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    for (;;) {
      const int client = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      const int a = keep(Descriptor(client));
      const int b = keep(Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
      if (::connect(b, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return;
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      relaying_.emplace_back([this, a, b] { relay(a, b, kHelloBytes); });
      relaying_.emplace_back([this, a, b] { relay(b, a, kWelcomeBytes); });
    }
  }

  static bool send_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  /// Passes on what comes, frame by frame.
  void relay(int from, int to, std::size_t preamble) {
    std::string pending, held;
    std::array<char, 65536> buffer;
    bool open = true;
    while (open) {
      const ssize_t n = ::recv(from, buffer.data(), buffer.size(), 0);
      if (n <= 0) break;
      pending.append(buffer.data(), static_cast<std::size_t>(n));
      const std::size_t plain = std::min(preamble, pending.size());
      open = send_all(to, std::string_view(pending).substr(0, plain));
      pending.erase(0, plain);
      preamble -= plain;
      while (open && preamble == 0) {
        const std::optional<Frame> frame = take_frame(pending);
        if (!frame) break;
        open = pass_on(*frame, held, to);
      }
    }
    ::shutdown(from, SHUT_RDWR);
    ::shutdown(to, SHUT_RDWR);
  }

  struct Frame {
    std::string bytes;
    std::size_t header = kFrameHeaderBytes;
  };
  static std::optional<Frame> take_frame(std::string& pending) {
    using comm::MessageRecord;
    if (pending.size() < kFrameHeaderBytes) return std::nullopt;
    const auto header =
        decode_frame_header(std::as_bytes(std::span(pending.data(), kFrameHeaderBytes)));
    Frame frame;
    std::size_t payload = header.ok() ? header->length : 0;
    if (!header.ok()) {  // of the line for messages
      MessageRecord record;
      if (pending.size() < sizeof record) return std::nullopt;
      std::memcpy(&record, pending.data(), sizeof record);
      using enum MessageRecord::Kind;
      frame.header = sizeof record;
      payload = record.kind == kEager || record.kind == kData ? record.bytes : 0;
    }
    if (pending.size() < frame.header + payload) return std::nullopt;
    frame.bytes = pending.substr(0, frame.header + payload);
    pending.erase(0, frame.bytes.size());
    return frame;
  }

  bool pass_on(const Frame& passed, std::string& held, int to) {
    std::string frame = passed.bytes;
    const bool now = frame.size() > passed.header && passed_++ == frame_;
    if (now && fault_ != WireFault::kNone) {
      happened_ = true;
      if (fault_ == WireFault::kFlippedBit) {
        frame[passed.header + (frame.size() - passed.header) / 2] ^= 4;
      } else if (fault_ == WireFault::kFlippedHeader) {
        // a frame's sequence, or a record's count: 8 bytes from the 8th
        frame[8 + static_cast<std::size_t>(frame_) % 8] ^= 4;
      } else if (fault_ == WireFault::kReordered) {
        held = std::move(frame);
        return true;
      } else {
        send_all(to, std::string_view(frame).substr(0, frame.size() / 2));
        return false;
      }
    }
    return send_all(to, frame) && send_all(to, std::exchange(held, {}));
  }

  const WireFault fault_;
  const int frame_;
  std::atomic<int> passed_{0};
  std::atomic<bool> happened_{false};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<Descriptor> open_;       // guarded by mutex_
  std::vector<std::thread> relaying_;  // guarded by mutex_
  std::vector<std::thread> accepting_;
};

}  // namespace stormo::transport
