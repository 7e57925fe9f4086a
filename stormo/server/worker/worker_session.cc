#include <stormo/server/worker/worker_session.h>

#include <fmt/format.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include <stormo/server/client/remote_ledger.h>
#include <stormo/server/client/remote_shard.h>
#include <stormo/server/intervals.h>
#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/link/server_link.h>
#include <stormo/server/message/place.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/server/worker/server_liveness.h>

namespace stormo::server {
namespace {

/// With backups: how long a server is tried before the others.
constexpr Duration kTurn = std::chrono::milliseconds(500);

std::uint64_t random_token() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

/// Of what is mapped: every call fails when its server is lost.
std::function<Status()> status_of(const std::shared_ptr<ServerLink>& link) {
  return [link] { return link->status_while_waiting(); };
}

class LinkedWorkerSession final : public WorkerSession {
 public:
  explicit LinkedWorkerSession(Options options) : options_(std::move(options)) {}

  Status connect(Deadline by);
  int worker() const override { return options_.worker; }
  int workers() const override { return options_.workers; }
  int hosts() const override { return options_.hosts; }
  bool opens() const override { return opens_; }
  bool is_chief() const override { return liveness_ ? liveness_->is_chief() : opens_; }
  bool may_change_chief() const override { return options_.backups; }
  bool is_over() const override { return liveness_ && liveness_->is_over(); }
  Result<std::vector<std::unique_ptr<Shard>>> shards(const RunTerms& terms, Deadline by) override;
  Status open() override {
    if (liveness_) liveness_->open();
    return ask_all(ServerOp::kOpen);
  }
  Ledger& ledger() override { return *ledger_; }
  std::unique_ptr<Coordinator> coordinator() override;
  WorkerPulse& pulse() override { return *pulse_; }
  Status finish() override {
    if (liveness_) liveness_->rest();
    return ask_all(ServerOp::kFinish);
  }
  void fail(const std::string& why) override { (void)ask_all(ServerOp::kFail, why); }

 private:
  Status ask_all(ServerOp op, const std::string& body = {});
  ServerLink::Options link_options(std::size_t server, std::uint64_t token) const;
  Status connect_all(std::uint64_t token, Deadline by);
  /// With backups: kPeerLost when a server and the one with its copy are lost.
  Status check_coverage() const;
  bool is_lost(std::size_t server) const {
    return liveness_ && liveness_->health(server)->failed();
  }
  /// The server's list of shards; nothing when the server is lost, and another one has a copy.
  Result<std::optional<std::vector<SharedFile>>> ask_terms(std::size_t server,
                                                           const RunTerms& terms, Deadline by);
  Result<std::optional<transport::MemoryFile>> map(std::size_t server, const SharedFile& file);
  std::shared_ptr<DataLink> data_link(std::size_t server);
  /// `number`: of the server's shards.
  Result<std::unique_ptr<Shard>> shard_at(std::size_t server, std::uint32_t number,
                                          const std::optional<SharedFile>& file,
                                          const std::vector<ShardPiece>& pieces,
                                          const ShardOptions& options);

  Options options_;
  bool opens_ = false;
  std::shared_ptr<WorkerPulse> pulse_ = std::make_shared<WorkerPulse>();
  std::shared_ptr<ServerLiveness> liveness_;        // with backups
  std::vector<std::shared_ptr<ServerLink>> links_;  // by server; null: lost before it was reached
  std::map<std::size_t, std::shared_ptr<DataLink>>
      data_links_;  // of servers whose memory is not mapped
  std::unique_ptr<Ledger> ledger_;
  std::size_t shards_ = 0;
};

ServerLink::Options LinkedWorkerSession::link_options(std::size_t server,
                                                      std::uint64_t token) const {
  const std::size_t servers = options_.servers.size();
  WorkerHello hello{.worker = options_.worker,
                    .workers = options_.workers,
                    .server = static_cast<std::int32_t>(server),
                    .servers = static_cast<std::int32_t>(servers),
                    .token = token,
                    .timeout_ns = options_.timeout.count(),
                    .place = options_.share_memory ? Place::own() : Place{},
                    .backups = options_.backups};
  ServerLink::Options out{
      .server = options_.servers[server], .secret = options_.secret, .hello = std::move(hello)};
  if (server == 0 && options_.on_event) {
    out.on_notice = [tell = options_.on_event](std::string_view line) { tell(std::string(line)); };
  }
  out.beat = [pulse = pulse_, liveness = liveness_] {
    return encode(
        WorkerBeat{.state = pulse->state(), .news = liveness ? liveness->beat() : ServerNews{}});
  };
  out.on_wait = [pulse = pulse_] { pulse->look(); };
  if (options_.backups) {
    out.hello.successor = transport::to_string(options_.servers[(server + 1) % servers]);
    out.on_answer = [liveness = liveness_, server](std::string_view answer) {
      liveness->take(server, answer);
    };
    out.health = liveness_->health(server);
  }
  return out;
}

Status LinkedWorkerSession::connect(Deadline by) {
  links_.resize(options_.servers.size());
  if (options_.backups)
    liveness_ = std::make_shared<ServerLiveness>(options_.servers, options_.worker);
  STORMO_RETURN_IF_ERROR(connect_all(random_token(), by));
  for (const auto& link : links_) {
    if (liveness_ && link) liveness_->learn(link->server().chief);
  }
  opens_ = options_.worker == 0 && (!liveness_ || liveness_->is_chief());
  if (options_.backups) {
    ledger_ = std::make_unique<RemoteLedger>(data_link(0));
    return {};
  }
  STORMO_ASSIGN_OR_RETURN(auto memory, map(0, links_[0]->server().ledger));
  if (memory) {
    auto ledger =
        std::make_unique<SharedLedger>(options_.workers, options_.worker, status_of(links_[0]));
    ledger->attach(*std::move(memory));
    ledger_ = std::move(ledger);
  } else {
    ledger_ = std::make_unique<RemoteLedger>(data_link(0));
  }
  return {};
}

/// A worker that comes late learns from beats of other servers which ones are lost.
Status LinkedWorkerSession::connect_all(std::uint64_t token, Deadline by) {
  const Deadline quiet = Deadline::after(kTellAfter);
  for (bool told = false;;) {
    Status missing;
    for (std::size_t s = 0; s < links_.size(); ++s) {
      if (links_[s] || is_lost(s)) continue;
      const Deadline turn = liveness_ ? Deadline::after(kTurn) : told ? by : quiet;
      Result<std::unique_ptr<ServerLink>> link = ServerLink::connect(
          link_options(s, token), Deadline::at(std::min(by.when(), turn.when())));
      if (link.ok()) {
        links_[s] = std::move(*link);
      } else if (link.status().code() == Code::kDeadlineExceeded) {
        missing = link.status();
      } else {
        return link.status();
      }
    }
    STORMO_RETURN_IF_ERROR(check_coverage());
    if (missing.ok() || by.expired()) return missing;
    if (told || !quiet.expired()) continue;
    told = true;
    if (options_.on_event) options_.on_event("waits: " + missing.message());
  }
}

Status LinkedWorkerSession::check_coverage() const {
  if (!liveness_) return {};
  for (std::size_t s = 0; s < links_.size(); ++s) {
    const std::size_t backup = (s + 1) % links_.size();
    if (!is_lost(s) || !is_lost(backup)) continue;
    const Status first = liveness_->health(s)->status(),
                 second = liveness_->health(backup)->status();
    return first == second ? first : second.within(first.message() + "; and its backup");
  }
  return {};
}

/// Nothing where memory is not shared.
Result<std::optional<transport::MemoryFile>> LinkedWorkerSession::map(std::size_t server,
                                                                      const SharedFile& file) {
  std::optional<transport::MemoryFile> out;
  if (!options_.share_memory || options_.backups) return out;
  Result<transport::MemoryFile> mapped =
      map_file_of(links_[server]->server().place, file.fd, file.bytes);
  if (mapped.status().code() == Code::kNotFound) return out;
  STORMO_RETURN_IF_ERROR(mapped.status());
  out.emplace(std::move(*mapped));
  return out;
}

std::shared_ptr<DataLink> LinkedWorkerSession::data_link(std::size_t server) {
  std::shared_ptr<DataLink>& link = data_links_[server];
  if (link) return link;
  std::vector<std::shared_ptr<ServerLink>> holders = {links_[server]};
  if (options_.backups) holders.push_back(links_[(server + 1) % links_.size()]);
  std::erase(holders, nullptr);
  return link = std::make_shared<DataLink>(std::move(holders), static_cast<int>(server));
}

Result<std::vector<std::unique_ptr<Shard>>> LinkedWorkerSession::shards(const RunTerms& terms,
                                                                        Deadline by) {
  STORMO_RETURN_IF_ERROR(check(terms));
  STORMO_ASSIGN_OR_RETURN(auto policy, protocol::make_policy(terms.policy, terms.workers));
  const ShardOptions options{
      .workers = terms.workers, .optimizer = terms.optimizer, .policy = std::move(policy)};
  if (options_.backups && terms.policy.kind == protocol::PolicyOptions::Kind::kPortions) {
    return invalid_argument(
        "servers with backups cannot have the policy portions, whose coordinator has no copy; use "
        "another policy, or no backups");
  }
  shards_ = terms.pieces.size();
  std::vector<std::unique_ptr<Shard>> out(shards_);
  for (std::size_t server = 0; server < links_.size(); ++server) {
    STORMO_ASSIGN_OR_RETURN(const auto files, ask_terms(server, terms, by));
    std::uint32_t number = 0;
    for (std::size_t s = server; s < out.size(); s += links_.size(), ++number) {
      if (files && number >= files->size()) break;
      const auto file = files ? std::optional((*files)[number]) : std::nullopt;
      STORMO_ASSIGN_OR_RETURN(out[s], shard_at(server, number, file, terms.pieces[s], options));
    }
    if ((files && number != files->size()) || server + number * links_.size() < out.size()) {
      return Status(Code::kCorrupt, "a server has another number of shards than it should");
    }
  }
  return out;
}

Result<std::optional<std::vector<SharedFile>>> LinkedWorkerSession::ask_terms(std::size_t server,
                                                                              const RunTerms& terms,
                                                                              Deadline by) {
  std::optional<std::vector<SharedFile>> files;
  // until the shards are made there are no copies
  const bool may_be_lost = !opens_;
  if (may_be_lost && is_lost(server)) return files;
  const Result<std::string> answer = links_[server]->ask(ServerOp::kTerms, encode(terms), by);
  if (!answer.ok() && may_be_lost && is_lost(server)) return files;
  STORMO_RETURN_IF_ERROR(answer.status());
  STORMO_ASSIGN_OR_RETURN(files, decode<std::vector<SharedFile>>(*answer));
  return files;
}

Result<std::unique_ptr<Shard>> LinkedWorkerSession::shard_at(std::size_t server,
                                                             std::uint32_t number,
                                                             const std::optional<SharedFile>& file,
                                                             const std::vector<ShardPiece>& pieces,
                                                             const ShardOptions& options) {
  std::optional<transport::MemoryFile> memory;
  if (file) {
    if (SharedShard(pieces, options, worker(), {}).bytes() != file->bytes) {
      return Status(Code::kMismatch, "the server lays out shards otherwise; use the same version");
    }
    STORMO_ASSIGN_OR_RETURN(memory, map(server, *file));
  }
  if (!memory) {
    return RemoteShard::create(data_link(server), number, pieces, options);
  }
  auto shard = std::make_unique<SharedShard>(
      pieces, options, worker(),
      ShardWait{.policy = transport::wait_policy(options.workers, transport::usable_cores()),
                .status = status_of(links_[server])});
  shard->attach(*std::move(memory));
  return std::unique_ptr<Shard>(std::move(shard));
}

std::unique_ptr<Coordinator> LinkedWorkerSession::coordinator() {
  std::vector<std::shared_ptr<DataLink>> links;
  for (std::size_t s = 0; s < links_.size(); ++s) {
    links.push_back(std::make_shared<DataLink>(std::vector{links_[s]}, static_cast<int>(s), true));
  }
  return std::make_unique<Coordinator>(std::move(links), shards_);
}

/// All servers are asked, also when one of them is lost.
Status LinkedWorkerSession::ask_all(ServerOp op, const std::string& body) {
  Status first = check_coverage();
  for (std::size_t s = 0; s < links_.size(); ++s) {
    if (is_lost(s)) continue;
    const Status status = links_[s]->ask(op, body, Deadline::after(options_.timeout)).status();
    if (first.ok() && !is_lost(s)) first = status;
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
  if (options.backups && options.servers.size() < 2) {
    return invalid_argument("backups need two servers or more; this run has one");
  }
  auto session = std::make_shared<LinkedWorkerSession>(std::move(options));
  STORMO_RETURN_IF_ERROR(session->connect(by));
  return std::shared_ptr<WorkerSession>(std::move(session));
}

}  // namespace stormo::server
