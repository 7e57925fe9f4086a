#include <stormo/server/process/hosted_partitions.h>

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include <stormo/protocol/server/server_verdicts.h>

namespace stormo::server {
namespace {

using protocol::successor;

constexpr Duration kLongestTimeout = std::chrono::hours(24);

bool is_possible(const WorkerHello& hello) {
  return hello.workers >= 1 && hello.workers <= ShardMemory::kMaxWorkers && hello.worker >= 0 &&
         hello.worker < hello.workers && hello.servers >= (hello.backups ? 2 : 1) &&
         hello.server >= 0 && hello.server < hello.servers && hello.timeout_ns > 0 &&
         hello.timeout_ns <= kLongestTimeout.count() &&
         (!hello.backups || transport::parse_host_port(hello.successor).ok());
}

std::string describe(const WorkerHello& hello) {
  return fmt::format(
      "server {} of {} with {} workers{}", hello.server, hello.servers, hello.workers,
      hello.backups ? fmt::format(" and a backup at {}", hello.successor) : std::string());
}

}  // namespace

Result<std::unique_ptr<HostedPartitions>> HostedPartitions::create(const WorkerHello& first) {
  if (!is_possible(first)) return invalid_argument("a worker with impossible numbers");
  std::unique_ptr<HostedPartitions> parts(new HostedPartitions(first));
  STORMO_ASSIGN_OR_RETURN(
      parts->own_, Replica::create(first.workers, first.server, first.servers,
                                   first.backups ? Replica::Role::kPrimary : Replica::Role::kOnly));
  if (!first.backups) return parts;
  STORMO_ASSIGN_OR_RETURN(
      parts->copy_,
      Replica::create(first.workers, protocol::predecessor(first.server, first.servers),
                      first.servers, Replica::Role::kBackup));
  parts->predecessor_.emplace(*parts->copy_);
  return parts;
}

HostedPartitions::~HostedPartitions() { close(); }

Status HostedPartitions::check(const WorkerHello& hello) const {
  if (!is_possible(hello)) return invalid_argument("a worker with impossible numbers");
  if (describe(hello) == describe(first_)) return {};
  return Status(Code::kMismatch,
                fmt::format("worker {} takes this for {}, but others take it for {}; give all "
                            "workers the same list",
                            hello.worker, describe(hello), describe(first_)));
}

SharedFile HostedPartitions::ledger_file() const {
  SharedFile file = own_->run().ledger_file();
  if (has_backups()) file.fd = -1;
  return file;
}

std::vector<SharedFile> HostedPartitions::shard_files() const {
  std::vector<SharedFile> files = own_->run().shard_files();
  for (SharedFile& file : files) file.fd = has_backups() ? -1 : file.fd;
  return files;
}

std::uint64_t HostedPartitions::needed_bytes(const RunTerms& terms) const {
  return own_->run().needed_bytes(terms) + (copy_ ? copy_->run().needed_bytes(terms) : 0);
}

Status HostedPartitions::create_shards(const RunTerms& terms, const transport::Secret& secret,
                                       Duration timeout) {
  if (copy_) {
    STORMO_RETURN_IF_ERROR(copy_->run().create_shards(terms));
    WorkerHello hello = first_;
    hello.worker = first_.workers + first_.server;
    hello.server = successor(first_.server, first_.servers);
    std::random_device random;
    hello.token = static_cast<std::uint64_t>(random()) << 32 | random() | 1;
    hello.timeout_ns = timeout.count();
    hello.place = Place::own();
    hello.successor.clear();
    STORMO_ASSIGN_OR_RETURN(const transport::HostPort address,
                            transport::parse_host_port(first_.successor));
    STORMO_RETURN_IF_ERROR(
        own_->connect_backup({.server = address, .secret = secret, .hello = std::move(hello)}));
  }
  return own_->run().create_shards(terms);
}

std::vector<Replica*> HostedPartitions::all() {
  std::vector<Replica*> out = {own_.get()};
  if (copy_) out.push_back(copy_.get());
  return out;
}

Replica* HostedPartitions::part(int number) {
  for (Replica* replica : all()) {
    if (replica->part() == number) return replica;
  }
  return nullptr;
}

void HostedPartitions::close() {
  for (Replica* replica : all()) replica->close();
  if (predecessor_) predecessor_->end();
}

bool HostedPartitions::is_predecessor(int worker) const {
  return copy_ && worker == first_.workers + copy_->part();
}

bool HostedPartitions::is_lost(int server) const { return std::ranges::count(lost_, server) > 0; }

ServerNews HostedPartitions::news() const {
  ServerNews news{.lost = lost_};
  const auto complain = [&](int server) {
    if (!is_lost(server)) news.complaints.push_back(server);
  };
  if (!own_->backup_status().ok()) complain(successor(first_.server, first_.servers));
  if (predecessor_->is_silent()) complain(copy_->part());
  return news;
}

Result<std::vector<std::string>> HostedPartitions::take(const ServerNews& news) {
  std::vector<std::string> lines;
  if (std::ranges::count(news.lost, first_.server) > 0) {
    failure_ =
        Status(Code::kPeerLost, "this server counts as lost: another server took its shards over");
    close();
    return failure_;
  }
  for (const std::int32_t server : news.lost) {
    if (server < 0 || server >= first_.servers) {
      return Status(Code::kCorrupt, "server protocol: impossible news");
    }
    if (is_lost(server)) continue;
    lost_.push_back(server);
    if (server == successor(first_.server, first_.servers)) {
      own_->go_on_alone();
      lines.push_back(
          fmt::format("server {} is lost: the shards of this server have no copy any "
                      "more",
                      server));
    }
    if (server == copy_->part()) {
      predecessor_->end();
      copy_->go_on_alone();
      lines.push_back(
          fmt::format("server {} is lost: this server goes on with its shards", server));
    }
  }
  return lines;
}

Status HostedPartitions::failure() const {
  if (!failure_.ok() || !copy_) return failure_;
  return copy_->failure();
}

}  // namespace stormo::server
