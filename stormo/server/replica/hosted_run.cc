#include <stormo/server/replica/hosted_run.h>

#include <utility>

#include <stormo/optim/lbfgs.h>

namespace stormo::server {

using transport::MemoryFile;

Result<std::unique_ptr<HostedRun>> HostedRun::create(int workers, int server, int servers) {
  std::unique_ptr<HostedRun> run(new HostedRun(workers, server, servers));
  if (server != 0) return run;
  STORMO_ASSIGN_OR_RETURN(MemoryFile memory,
                          MemoryFile::create("stormo-ledger", SharedLedger::bytes(workers)));
  SharedLedger(workers, 0).create(memory.data());
  run->ledger_.emplace(std::move(memory));
  return run;
}

// Two versions of weights and state, of sums where gradients are averaged, and a coordinator's
// vectors.
std::uint64_t HostedRun::needed_bytes(const RunTerms& terms) const {
  const optim::Options& optimizer = terms.optimizer;
  const auto policy = protocol::make_policy(terms.policy, workers_);
  const std::size_t sums = policy.ok() && (*policy)->averages() ? 2 : 0;
  const std::size_t arrays =
      2 * (1 + optim::slot_names(optimizer).size()) + sums + optim::Lbfgs::vectors(optimizer);
  std::uint64_t bytes = 0;
  for (auto s = static_cast<std::size_t>(server_); s < terms.pieces.size();
       s += static_cast<std::size_t>(servers_)) {
    for (const ShardPiece& piece : terms.pieces[s]) bytes += arrays * piece.bytes();
  }
  return bytes;
}

Status HostedRun::create_shards(const RunTerms& terms) {
  STORMO_RETURN_IF_ERROR(check(terms));
  STORMO_ASSIGN_OR_RETURN(auto policy, protocol::make_policy(terms.policy, workers_));
  options_ = {.workers = workers_, .optimizer = terms.optimizer, .policy = std::move(policy)};
  std::vector<HostedShard> shards;
  for (auto s = static_cast<std::size_t>(server_); s < terms.pieces.size();
       s += static_cast<std::size_t>(servers_)) {
    auto shard = std::make_unique<SharedShard>(terms.pieces[s], options_, workers_, ShardWait{});
    STORMO_ASSIGN_OR_RETURN(MemoryFile memory, MemoryFile::create("stormo-shard", shard->bytes()));
    shard->create(memory.data());
    shards.push_back({.memory = std::move(memory), .shard = std::move(shard)});
  }
  shards_ = std::move(shards);
  terms_ = terms;
  return {};
}

SharedFile HostedRun::ledger_file() const {
  return ledger_ ? SharedFile{.fd = ledger_->fd(), .bytes = ledger_->size()} : SharedFile{};
}

std::vector<SharedFile> HostedRun::shard_files() const {
  std::vector<SharedFile> files;
  for (const HostedShard& hosted : shards_) {
    files.push_back({.fd = hosted.memory.fd(), .bytes = hosted.memory.size()});
  }
  return files;
}

std::vector<std::unique_ptr<SharedShard>> HostedRun::shards_of(int worker,
                                                               const ShardWait& wait) const {
  std::vector<std::unique_ptr<SharedShard>> out;
  for (const HostedShard& hosted : shards_) {
    out.push_back(std::make_unique<SharedShard>(hosted.shard->pieces(), options_, worker, wait));
    out.back()->attach(hosted.memory.data());
  }
  return out;
}

std::unique_ptr<SharedLedger> HostedRun::ledger_of(int worker,
                                                   std::function<Status()> status) const {
  if (!ledger_) return nullptr;
  auto ledger = std::make_unique<SharedLedger>(workers_, worker == coordinator() ? 0 : worker,
                                               std::move(status));
  ledger->attach(ledger_->data());
  return ledger;
}

Status HostedRun::evict(int worker, Deadline by) {
  if (const auto ledger = ledger_of(worker)) ledger->evict();
  for (const HostedShard& hosted : shards_) {
    STORMO_RETURN_IF_ERROR(hosted.shard->evict(worker, by).status());
  }
  return {};
}

void HostedRun::release_copies(int worker) {
  for (const HostedShard& hosted : shards_) hosted.shard->release_copies(worker);
}

void HostedRun::readmit(int worker) {
  if (const auto ledger = ledger_of(worker)) ledger->readmit();
}

bool HostedRun::is_lost(int worker) const {
  const auto ledger = ledger_of(worker);
  return ledger && ledger->is_lost();
}

}  // namespace stormo::server
