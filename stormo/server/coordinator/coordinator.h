#pragma once

#include <memory>
#include <vector>

#include <stormo/optim/vector_program.h>
#include <stormo/server/client/remote_ledger.h>
#include <stormo/server/link/data_link.h>

namespace stormo::server {

/// The coordinator of a run with portions: it opens the steps, and makes the updates when all
/// portions of a step are computed. It sends only small messages; servers do the arithmetic, each
/// with its shards. A vector lies in parts on all of them. For one thread, which need not be that
/// of the worker in the same process.
class Coordinator final : public optim::VectorSpace {
 public:
  /// `links`: by server, made for a coordinator; shard s lies on server s % links.size().
  Coordinator(std::vector<std::shared_ptr<DataLink>> links, std::size_t shards);

  /// All servers work at the same time. Losses are those of the first shard, since all shards have
  /// got the same ones; scalar products are summed in the order of the shards.
  Result<std::vector<double>> run(const optim::VectorProgram& program) override;

  /// Only Ledger::look(), wait() and advance().
  Ledger& ledger() { return ledger_; }

 private:
  std::vector<std::shared_ptr<DataLink>> links_;
  std::size_t shards_;
  RemoteLedger ledger_;
};

}  // namespace stormo::server
