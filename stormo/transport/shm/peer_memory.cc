#include <stormo/transport/shm/peer_memory.h>

#include <fmt/format.h>
#include <sys/uio.h>

#include <cerrno>

namespace stormo::transport {
namespace {

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

Status copy_all(Copy copy, pid_t pid, std::uintptr_t here, std::uintptr_t there,
                std::size_t bytes) {
  while (bytes > 0) {
    const iovec local{reinterpret_cast<void*>(here), bytes};
    const iovec remote{reinterpret_cast<void*>(there), bytes};
    const ssize_t done = copy(pid, &local, 1, &remote, 1, 0);
    if (done > 0) {
      here += static_cast<std::uintptr_t>(done);
      there += static_cast<std::uintptr_t>(done);
      bytes -= static_cast<std::size_t>(done);
      continue;
    }
    if (done < 0 && errno == ESRCH) {
      return {Code::kPeerLost, fmt::format("process {} of this host is gone", pid)};
    }
    if (done == 0 || errno == EFAULT) {
      return invalid_argument(
          fmt::format("the buffer that process {} gave is not in its memory", pid));
    }
    return errno_error(fmt::format("copying from or to memory of process {}", pid));
  }
  return {};
}

}  // namespace

Status PeerMemory::read(void* to, const void* from, std::size_t bytes) const {
  return copy_all(process_vm_readv, home_.pid, reinterpret_cast<std::uintptr_t>(to),
                  home_.arena + to_offset(from), bytes);
}

Status PeerMemory::write(void* to, const void* from, std::size_t bytes) const {
  return copy_all(process_vm_writev, home_.pid, reinterpret_cast<std::uintptr_t>(from),
                  home_.arena + to_offset(to), bytes);
}

}  // namespace stormo::transport
