#include <stormo/server/worker_session.h>

#include <fmt/format.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include <stormo/server/mapped_run.h>
#include <stormo/server/place.h>
#include <stormo/server/remote_run.h>
#include <stormo/server/server_link.h>

namespace stormo::server {
namespace {

std::uint64_t random_token() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

class LinkedWorkerSession final : public WorkerSession {
 public:
  explicit LinkedWorkerSession(Options options) : options_(std::move(options)) {}

  Status connect(Deadline by);
  int worker() const override { return options_.worker; }
  int workers() const override { return options_.workers; }
  Result<std::vector<std::unique_ptr<Shard>>> shards(const RunTerms& terms, Deadline by) override;
  Status open() override { return ask_all(ServerOp::kOpen); }
  Ledger& ledger() override { return *ledger_; }
  Status finish() override { return ask_all(ServerOp::kFinish); }

 private:
  Status ask_all(ServerOp op);
  Result<std::optional<transport::MemoryFile>> map(std::size_t server, const SharedFile& file);
  std::shared_ptr<DataLink> data_link(std::size_t server);
  /// `number`: of the server's shards.
  Result<std::unique_ptr<Shard>> shard_at(std::size_t server, std::uint32_t number,
                                          const SharedFile& file,
                                          const std::vector<ShardPiece>& pieces,
                                          const ShardOptions& options);

  Options options_;
  std::vector<std::shared_ptr<ServerLink>> links_;  // by server
  std::map<std::size_t, std::shared_ptr<DataLink>>
      data_links_;  // of servers whose memory is not mapped
  std::unique_ptr<Ledger> ledger_;
};

Status LinkedWorkerSession::connect(Deadline by) {
  const std::uint64_t token = random_token();
  for (std::size_t s = 0; s < options_.servers.size(); ++s) {
    const WorkerHello hello{.worker = options_.worker,
                            .workers = options_.workers,
                            .server = static_cast<std::int32_t>(s),
                            .servers = static_cast<std::int32_t>(options_.servers.size()),
                            .token = token,
                            .timeout_ns = options_.timeout.count(),
                            .place = options_.share_memory ? Place::own() : Place{}};
    STORMO_ASSIGN_OR_RETURN(
        std::shared_ptr<ServerLink> link,
        ServerLink::connect(
            {.server = options_.servers[s], .secret = options_.secret, .hello = hello}, by));
    links_.push_back(std::move(link));
  }
  STORMO_ASSIGN_OR_RETURN(auto memory, map(0, links_[0]->server().ledger));
  if (memory) {
    ledger_ = std::make_unique<MappedLedger>(links_[0], std::move(*memory), options_.workers,
                                             options_.worker);
  } else {
    ledger_ = std::make_unique<RemoteLedger>(data_link(0));
  }
  return {};
}

/// Nothing where memory is not shared.
Result<std::optional<transport::MemoryFile>> LinkedWorkerSession::map(std::size_t server,
                                                                      const SharedFile& file) {
  std::optional<transport::MemoryFile> out;
  if (!options_.share_memory) return out;
  Result<transport::MemoryFile> mapped =
      map_file_of(links_[server]->server().place, file.fd, file.bytes);
  if (mapped.status().code() == Code::kNotFound) return out;
  STORMO_RETURN_IF_ERROR(mapped.status());
  out.emplace(std::move(*mapped));
  return out;
}

std::shared_ptr<DataLink> LinkedWorkerSession::data_link(std::size_t server) {
  std::shared_ptr<DataLink>& link = data_links_[server];
  if (!link) link = std::make_shared<DataLink>(links_[server]);
  return link;
}

Result<std::vector<std::unique_ptr<Shard>>> LinkedWorkerSession::shards(const RunTerms& terms,
                                                                        Deadline by) {
  STORMO_RETURN_IF_ERROR(check(terms));
  STORMO_ASSIGN_OR_RETURN(auto policy, protocol::make_policy(terms.policy, terms.workers));
  const ShardOptions options{
      .workers = terms.workers, .optimizer = terms.optimizer, .policy = std::move(policy)};
  std::vector<std::unique_ptr<Shard>> out(terms.pieces.size());
  for (std::size_t server = 0; server < links_.size(); ++server) {
    STORMO_ASSIGN_OR_RETURN(const std::string answer,
                            links_[server]->ask(ServerOp::kTerms, encode(terms), by));
    STORMO_ASSIGN_OR_RETURN(const std::vector<SharedFile> files, decode_shard_files(answer));
    std::uint32_t number = 0;
    for (std::size_t s = server; s < out.size(); s += links_.size(), ++number) {
      if (number >= files.size()) break;
      STORMO_ASSIGN_OR_RETURN(out[s],
                              shard_at(server, number, files[number], terms.pieces[s], options));
    }
    if (number != files.size() || server + number * links_.size() < out.size()) {
      return Status(Code::kCorrupt, "a server has another number of shards than it should");
    }
  }
  return out;
}

Result<std::unique_ptr<Shard>> LinkedWorkerSession::shard_at(std::size_t server,
                                                             std::uint32_t number,
                                                             const SharedFile& file,
                                                             const std::vector<ShardPiece>& pieces,
                                                             const ShardOptions& options) {
  if (SharedShard(pieces, options, worker(), {}).bytes() != file.bytes) {
    return Status(Code::kMismatch, "the server lays out shards otherwise; use the same version");
  }
  STORMO_ASSIGN_OR_RETURN(auto memory, map(server, file));
  if (!memory) {
    return RemoteShard::create(data_link(server), number, pieces,
                               optim::slot_names(options.optimizer).size());
  }
  return std::unique_ptr<Shard>(
      std::make_unique<MappedShard>(links_[server], std::move(*memory), pieces, options, worker()));
}

/// All servers are asked, also when one of them is lost.
Status LinkedWorkerSession::ask_all(ServerOp op) {
  Status first;
  for (const auto& link : links_) {
    const Status status = link->ask(op, {}, Deadline::after(options_.timeout)).status();
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace

Result<std::shared_ptr<WorkerSession>> WorkerSession::connect(Options options, Deadline by) {
  if (options.servers.empty() || options.worker < 0 || options.worker >= options.workers) {
    return invalid_argument(fmt::format(
        "worker {} of {} and {} servers: a session needs a server, and a worker below the number "
        "of workers",
        options.worker, options.workers, options.servers.size()));
  }
  auto session = std::make_shared<LinkedWorkerSession>(std::move(options));
  STORMO_RETURN_IF_ERROR(session->connect(by));
  return std::shared_ptr<WorkerSession>(std::move(session));
}

}  // namespace stormo::server
