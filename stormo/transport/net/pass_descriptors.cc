#include <stormo/transport/net/pass_descriptors.h>

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace stormo::transport {

ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                              std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsPerMessage)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_with_descriptors(int socket, std::span<std::byte> bytes, int flags,
                                 std::vector<Descriptor>& descriptors) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsPerMessage)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); got >= 0 && h != nullptr;
       h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(received);
    }
  }
  if (got >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    errno = EMFILE;
    return -1;
  }
  return got;
}

}  // namespace stormo::transport
