#include <stormo/transport/shm/host_exchange.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <stormo/transport/net/pass_descriptors.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::transport {
namespace {

constexpr std::size_t kTokenBytes = 16;

/// What a rank says when it enters; its arena's descriptor rides along.
struct Entry {
  std::array<char, 2 * kTokenBytes> token;
  std::int32_t local_rank;
  std::uint64_t arena_bytes;
  cpu_set_t mask;
};

/// The listener's answer: sizes; descriptors follow in batches (the region first, then arenas by
/// rank).
struct Welcome {
  std::int32_t local_size;
  std::int32_t cores;
};

/// Until one of them is ready: its `revents` say so.
Status wait_ready(std::span<pollfd> fds, Deadline by, const Health* job) {
  constexpr Duration kJobLook = std::chrono::milliseconds(50);
  for (;;) {
    const auto left = std::min<Duration>(by.remaining(), kJobLook);
    const int ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
    const int ready = poll(fds.data(), fds.size(), ms);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return errno_error("poll");
    if (job != nullptr && job->failed()) return job->status();
    if (by.expired()) {
      return {Code::kDeadlineExceeded, "the ranks of this host did not all arrive in time"};
    }
  }
}

/// Sends `bytes` and descriptors as one packet. Packets are small: they never block for long.
Status send_packet(int fd, const void* bytes, std::size_t size, std::span<const int> descriptors) {
  const std::span<const std::byte> packet(static_cast<const std::byte*>(bytes), size);
  if (send_with_descriptors(fd, packet, descriptors) != static_cast<ssize_t>(size)) {
    return errno_error("handing memory files to a rank of this host");
  }
  return {};
}

/// Receives one packet of exactly `size` bytes and appends its descriptors.
Status receive_packet(int fd, void* bytes, std::size_t size, std::vector<Descriptor>& descriptors,
                      Deadline by, const Health* job) {
  pollfd readable{fd, POLLIN, 0};
  STORMO_RETURN_IF_ERROR(wait_ready({&readable, 1}, by, job));
  const std::span<std::byte> packet(static_cast<std::byte*>(bytes), size);
  if (receive_with_descriptors(fd, packet, 0, descriptors) != static_cast<ssize_t>(size)) {
    return {Code::kPeerLost, "a rank of this host went away while memory was handed over"};
  }
  return {};
}

const sockaddr* as_sockaddr(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

cpu_set_t own_mask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof mask, &mask);
  return mask;
}

std::string random_hex(std::size_t bytes) { return Secret::random().to_hex().substr(0, 2 * bytes); }

/// Maps what the listener handed out: descriptors[0] is the region, then one arena per rank.
Result<HostParts> assemble(int rank, int local_size, int cores, Arena& arena,
                           std::vector<Descriptor> descriptors,
                           const std::vector<std::uint64_t>& arena_bytes) {
  STORMO_ASSIGN_OR_RETURN(HostRegion region,
                          HostRegion::map(std::move(descriptors[0]), local_size));
  HostParts parts;
  parts.rank = rank;
  parts.cores = cores;
  parts.region = std::make_shared<HostRegion>(std::move(region));
  parts.arena = &arena;
  for (int r = 0; r < local_size; ++r) {
    if (r == rank) {
      parts.arena_bases.push_back(arena.base());
      continue;
    }
    const auto i = static_cast<std::size_t>(r);
    STORMO_ASSIGN_OR_RETURN(auto file,
                            MemoryFile::map_shared(std::move(descriptors[i + 1]), arena_bytes[i]));
    parts.arena_bases.push_back(file->data());
    parts.peer_arenas.push_back(std::move(file));
  }
  return parts;
}

struct Guest {
  Descriptor socket;
  Descriptor arena;
  std::uint64_t arena_bytes = 0;
};

/// Local rank 0's waiting room: whoever connects is heard when it speaks, so that a silent stranger
/// keeps nobody waiting. When all places are taken, the one that is silent longest gives way.
class WaitingRoom {
 public:
  WaitingRoom(int listener, std::string_view token, int local_size, const Health* job)
      : listener_(listener), token_(token), local_size_(local_size), job_(job) {}

  /// Until all other ranks of the host have entered.
  Result<std::vector<Guest>> gather(cpu_set_t& mask, Deadline by);

 private:
  static constexpr std::size_t kPlaces = 256;

  void accept_one();
  bool enter(Descriptor socket, cpu_set_t& mask);

  const int listener_;
  const std::string_view token_;
  const int local_size_;
  const Health* const job_;
  std::vector<Guest> guests_;       // by local rank
  std::vector<Descriptor> silent_;  // oldest first
};

void WaitingRoom::accept_one() {
  Descriptor socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid() || !check_same_user(socket.get()).ok()) return;
  if (silent_.size() >= kPlaces) silent_.erase(silent_.begin());
  silent_.push_back(std::move(socket));
}

/// Hears what a visitor says; false when that is not what a rank of this host would say.
bool WaitingRoom::enter(Descriptor socket, cpu_set_t& mask) {
  Entry entry{};
  std::vector<Descriptor> descriptors;
  const Deadline now = Deadline::after(Duration::zero());  // its packet is there
  if (!receive_packet(socket.get(), &entry, sizeof entry, descriptors, now, nullptr).ok())
    return false;
  const bool known = CRYPTO_memcmp(entry.token.data(), token_.data(), token_.size()) == 0;
  if (!known || descriptors.size() != 1 || entry.local_rank <= 0 ||
      entry.local_rank >= local_size_) {
    return false;
  }
  Guest& guest = guests_[static_cast<std::size_t>(entry.local_rank)];
  if (guest.socket.valid()) return false;
  // from here on packets are waited for
  const int flags = fcntl(socket.get(), F_GETFL);
  if (fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) return false;
  guest = {std::move(socket), std::move(descriptors[0]), entry.arena_bytes};
  CPU_OR(&mask, &mask, &entry.mask);
  return true;
}

Result<std::vector<Guest>> WaitingRoom::gather(cpu_set_t& mask, Deadline by) {
  guests_.resize(static_cast<std::size_t>(local_size_));
  for (int missing = local_size_ - 1; missing > 0;) {
    std::vector<pollfd> fds{{listener_, POLLIN, 0}};
    for (const Descriptor& s : silent_) fds.push_back({s.get(), POLLIN, 0});
    STORMO_RETURN_IF_ERROR(wait_ready(fds, by, job_)
                               .within(fmt::format("{} of {} ranks of this host",
                                                   local_size_ - missing, local_size_)));
    std::vector<Descriptor> still_silent;
    for (std::size_t i = 0; i < silent_.size(); ++i) {
      if (fds[i + 1].revents == 0) {
        still_silent.push_back(std::move(silent_[i]));
      } else if (enter(std::move(silent_[i]), mask)) {
        --missing;
      }
    }
    silent_ = std::move(still_silent);
    if (fds.front().revents != 0) accept_one();
  }
  return std::move(guests_);
}

}  // namespace

Result<std::unique_ptr<HostListener>> HostListener::open() {
  const std::string name = "stormo-host-" + random_hex(8);
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  STORMO_ASSIGN_OR_RETURN(const SocketAddress address, unix_address(name));
  if (fd.valid()) fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  if (!fd.valid() || bind(fd.get(), as_sockaddr(address), address.length) != 0 ||
      listen(fd.get(), HostRegion::kMaxRanks) != 0) {
    return errno_error("opening the socket of this host's ranks");
  }
  std::string ticket = name + " " + random_hex(kTokenBytes);
  return std::unique_ptr<HostListener>(new HostListener(fd.release(), std::move(ticket)));
}

HostListener::~HostListener() { close(fd_); }

Result<HostParts> HostListener::host(int local_size, Arena& arena, Deadline by, const Health* job) {
  STORMO_ASSIGN_OR_RETURN(HostRegion region, HostRegion::create(local_size));
  cpu_set_t mask = own_mask();
  const std::string token = ticket_.substr(ticket_.find(' ') + 1);
  WaitingRoom room(fd_, token, local_size, job);
  STORMO_ASSIGN_OR_RETURN(const std::vector<Guest> guests, room.gather(mask, by));

  std::vector<int> descriptors{region.fd(), arena.fd()};
  std::vector<std::uint64_t> arena_bytes{arena.capacity()};
  for (std::size_t r = 1; r < guests.size(); ++r) {
    descriptors.push_back(guests[r].arena.get());
    arena_bytes.push_back(guests[r].arena_bytes);
  }
  const Welcome welcome{local_size, std::max(1, CPU_COUNT(&mask))};
  for (std::size_t r = 1; r < guests.size(); ++r) {
    const int to = guests[r].socket.get();
    STORMO_RETURN_IF_ERROR(send_packet(to, &welcome, sizeof welcome, {}));
    STORMO_RETURN_IF_ERROR(
        send_packet(to, arena_bytes.data(), arena_bytes.size() * sizeof(std::uint64_t), {}));
    for (std::size_t i = 0; i < descriptors.size(); i += kDescriptorsPerMessage) {
      const std::size_t n = std::min<std::size_t>(kDescriptorsPerMessage, descriptors.size() - i);
      const char more = 1;
      STORMO_RETURN_IF_ERROR(send_packet(to, &more, 1, std::span(descriptors).subspan(i, n)));
    }
  }
  std::vector<Descriptor> own;
  for (const int fd : descriptors) {
    Descriptor copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return errno_error("a descriptor of this host's memory");
    own.push_back(std::move(copy));
  }
  return assemble(0, local_size, welcome.cores, arena, std::move(own), arena_bytes);
}

Result<HostParts> join_host(const std::string& ticket, int local_rank, int local_size, Arena& arena,
                            Deadline by, const Health* job) {
  const std::size_t space = ticket.find(' ');
  if (space == std::string::npos || ticket.size() - space - 1 != 2 * kTokenBytes || space > 64) {
    return Status(Code::kCorrupt, "the socket of this host's ranks has a malformed ticket");
  }
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  STORMO_ASSIGN_OR_RETURN(const SocketAddress address,
                          unix_address(std::string_view(ticket).substr(0, space)));
  if (!fd.valid() || connect(fd.get(), as_sockaddr(address), address.length) != 0) {
    return errno_error(
        "reaching local rank 0 (are both ranks on one host and in one network "
        "namespace?)");
  }
  STORMO_RETURN_IF_ERROR(check_same_user(fd.get()).within("the socket of this host's ranks"));
  Entry entry{};
  std::copy_n(ticket.data() + space + 1, entry.token.size(), entry.token.data());
  entry.local_rank = local_rank;
  entry.arena_bytes = arena.capacity();
  entry.mask = own_mask();
  const int arena_fd = arena.fd();
  STORMO_RETURN_IF_ERROR(send_packet(fd.get(), &entry, sizeof entry, {&arena_fd, 1}));

  Welcome welcome{};
  std::vector<Descriptor> descriptors;
  STORMO_RETURN_IF_ERROR(receive_packet(fd.get(), &welcome, sizeof welcome, descriptors, by, job));
  if (welcome.local_size != local_size) {
    return invalid_argument(
        fmt::format("local rank 0 counts {} ranks on this host, local rank {} "
                    "counts {}: give all ranks the same local size",
                    welcome.local_size, local_rank, local_size));
  }
  std::vector<std::uint64_t> arena_bytes(static_cast<std::size_t>(local_size));
  STORMO_RETURN_IF_ERROR(receive_packet(fd.get(), arena_bytes.data(),
                                        arena_bytes.size() * sizeof(std::uint64_t), descriptors, by,
                                        job));
  while (descriptors.size() < static_cast<std::size_t>(local_size) + 1) {
    char more = 0;
    STORMO_RETURN_IF_ERROR(receive_packet(fd.get(), &more, 1, descriptors, by, job));
  }
  return assemble(local_rank, local_size, welcome.cores, arena, std::move(descriptors),
                  arena_bytes);
}

Result<HostParts> lone_host(Arena& arena) {
  STORMO_ASSIGN_OR_RETURN(HostRegion region, HostRegion::anonymous(1));
  HostParts parts;
  parts.region = std::make_shared<HostRegion>(std::move(region));
  parts.arena = &arena;
  parts.arena_bases = {arena.base()};
  return parts;
}

}  // namespace stormo::transport
