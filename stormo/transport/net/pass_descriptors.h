#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <vector>

#include <stormo/transport/net/socket.h>

namespace stormo::transport {

/// The kernel takes at most 253 descriptors with one message.
inline constexpr std::size_t kDescriptorsPerMessage = 128;

/// sendmsg() of `bytes`, at least one, with descriptors for another process of this host
/// (SCM_RIGHTS). -1 with errno.
ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                              std::span<const int> descriptors);

/// recvmsg() with these flags; appends the descriptors that came along. -1 with errno, also where
/// some of them were cut off.
ssize_t receive_with_descriptors(int socket, std::span<std::byte> bytes, int flags,
                                 std::vector<Descriptor>& descriptors);

}  // namespace stormo::transport
