#include <stormo/comm/job/ticket_exchange.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include <stormo/comm/job/host_rendezvous.h>
#include <stormo/transport/net/socket.h>

namespace stormo::comm {
namespace {

class ByFile final : public TicketExchange {
 public:
  ByFile(std::string path, std::string listen)
      : path_(std::move(path)), listen_(std::move(listen)) {}
  Result<std::string> listen() override { return listen_; }
  Status publish(const RendezvousTicket& ticket) override {
    return write_rendezvous_file(path_, ticket);
  }
  Result<RendezvousTicket> receive(Deadline by) override { return read_rendezvous_file(path_, by); }
  void end() override { unlink(path_.c_str()); }
  std::string source() const override {
    return fmt::format(", which {} names (remove that file if it is of an earlier job)", path_);
  }

 private:
  const std::string path_;
  const std::string listen_;
};

class ByHostRendezvous final : public TicketExchange {
 public:
  ByHostRendezvous(std::vector<std::string> folders, std::string name)
      : folders_(std::move(folders)), name_(std::move(name)) {}
  Result<std::string> listen() override {
    STORMO_ASSIGN_OR_RETURN(file_, HostRendezvous::open(folders_, name_));
    return "unix:" + file_->socket_path();
  }
  Status publish(const RendezvousTicket& ticket) override { return file_->publish(ticket); }
  Result<RendezvousTicket> receive(Deadline by) override {
    return read_host_rendezvous(folders_, name_, by);
  }
  void end() override { file_.reset(); }

 private:
  const std::vector<std::string> folders_;
  const std::string name_;
  std::unique_ptr<HostRendezvous> file_;
};

class OverConnections final : public TicketExchange {
 public:
  explicit OverConnections(std::vector<Descriptor> connections)
      : connections_(std::move(connections)) {}
  Result<std::string> listen() override { return std::string("unix:"); }
  Status publish(const RendezvousTicket& ticket) override {
    std::string text = to_text(ticket);
    for (const Descriptor& c : connections_) {
      // less than a socket's buffer; who has died meanwhile is found by what comes next
      static_cast<void>(::send(c.get(), text.data(), text.size(), MSG_NOSIGNAL));
    }
    transport::cleanse(text);
    connections_.clear();
    return {};
  }
  Result<RendezvousTicket> receive(Deadline by) override {
    std::string text;
    auto ticket = read(by, text);
    transport::cleanse(text);
    connections_.clear();
    return ticket;
  }

 private:
  /// Until rank 0 closes the connection.
  Result<RendezvousTicket> read(Deadline by, std::string& text) {
    constexpr std::size_t kMaxText = 1024;
    text.reserve(2 * kMaxText);  // not copied while it grows
    std::array<char, kMaxText> part{};
    const int fd = connections_.front().get();
    while (text.size() <= kMaxText) {
      if (by.expired()) {
        return Status(Code::kDeadlineExceeded, "rank 0 has not started the job's store in time");
      }
      pollfd readable{fd, POLLIN, 0};
      ::poll(&readable, 1,
             transport::poll_timeout(std::chrono::steady_clock::now(), by.when(), 1000));
      const ssize_t n = ::recv(fd, part.data(), part.size(), MSG_DONTWAIT);
      if (n > 0) text.append(part.data(), static_cast<std::size_t>(n));
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n < 0 && errno != ECONNRESET) return errno_error("hearing from rank 0");
      if (n > 0) continue;
      if (!text.empty()) break;
      return Status(Code::kPeerLost, "rank 0 ended before the job's store had started");
    }
    return parse_ticket("what rank 0 has sent", text);
  }

  std::vector<Descriptor> connections_;
};

class InBulletin final : public TicketExchange {
 public:
  explicit InBulletin(Bulletin& bulletin) : bulletin_(bulletin) {}
  Status publish(const RendezvousTicket& ticket) override {
    return bulletin_.set(kKey, to_text(ticket));
  }
  Result<RendezvousTicket> receive(Deadline by) override {
    STORMO_ASSIGN_OR_RETURN(const std::string text, bulletin_.get(kKey, by));
    return parse_ticket("the ticket in the store", text);
  }

 private:
  static constexpr const char* kKey = "ticket";
  Bulletin& bulletin_;
};

}  // namespace

std::unique_ptr<TicketExchange> exchange_of(const transport::Rendezvous& r) {
  if (!r.rendezvous_file.empty()) {
    return std::make_unique<ByFile>(r.rendezvous_file, r.store.text);
  }
  if (r.host_rendezvous_name.empty()) return nullptr;
  return std::make_unique<ByHostRendezvous>(r.host_rendezvous_folders, r.host_rendezvous_name);
}

std::unique_ptr<TicketExchange> exchange_over(std::vector<Descriptor> connections) {
  return std::make_unique<OverConnections>(std::move(connections));
}

std::unique_ptr<TicketExchange> exchange_in(Bulletin& bulletin) {
  return std::make_unique<InBulletin>(bulletin);
}

}  // namespace stormo::comm
