#include <linux/tcp.h>
#include <netinet/in.h>
#include <stormo/transport/tcp/send_times.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <mutex>

namespace stormo::transport {
namespace {

std::mutex g_mutex;
BulkSent g_sent;

struct Kernel {
  std::uint64_t acknowledged = 0;
  std::uint64_t under_way_us = 0;
};

/// What the kernel has counted. Zeros if it counts nothing.
Kernel ask(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const std::uint64_t no_room = std::min(info.tcpi_rwnd_limited, info.tcpi_busy_time);
  return {info.tcpi_bytes_acked, info.tcpi_busy_time - no_room};
}

}  // namespace

double BulkSent::seconds() const {
  if (acknowledged == 0) return 0;
  return std::chrono::duration<double>(under_way).count() * static_cast<double>(bytes) /
         static_cast<double>(acknowledged);
}

BulkSent BulkSent::since(const BulkSent& before) const {
  return {bytes - before.bytes, acknowledged - before.acknowledged, under_way - before.under_way};
}

BulkSent bulk_sent() {
  const std::lock_guard lock(g_mutex);
  return g_sent;
}

void SendTimes::add(std::uint64_t bytes) {
  const std::lock_guard lock(g_mutex);
  g_sent.bytes += bytes;
}

void SendTimes::watch(int fd) {
  const Kernel now = ask(fd);
  sockets_.push_back({fd, now.acknowledged, now.under_way_us});
}

// Several connections share the interface of the host: the longest of their times counts.
void SendTimes::end() {
  if (sockets_.empty()) return;
  std::uint64_t acknowledged = 0, longest_us = 0;
  for (const Socket& socket : sockets_) {
    const Kernel now = ask(socket.fd);
    // what the reader has no room for may be counted before the time of its bytes is
    acknowledged += std::max(now.acknowledged, socket.acknowledged) - socket.acknowledged;
    longest_us =
        std::max(longest_us, std::max(now.under_way_us, socket.under_way_us) - socket.under_way_us);
  }
  sockets_.clear();
  const std::lock_guard lock(g_mutex);
  g_sent.acknowledged += acknowledged;
  g_sent.under_way += std::chrono::microseconds(longest_us);
}

}  // namespace stormo::transport
