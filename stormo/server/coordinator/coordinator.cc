#include <stormo/server/coordinator/coordinator.h>

#include <utility>

namespace stormo::server {
namespace {

/// For each number that a program gives: whether it is a loss.
std::vector<bool> losses_of(const optim::VectorProgram& program) {
  std::vector<bool> out;
  for (const optim::VectorStep& step : program) {
    if (step.kind == optim::VectorStep::Kind::kGradient) out.push_back(true);
    if (step.kind == optim::VectorStep::Kind::kDot) out.push_back(false);
  }
  return out;
}

}  // namespace

Coordinator::Coordinator(std::vector<std::shared_ptr<DataLink>> links, std::size_t shards)
    : links_(std::move(links)), shards_(shards), ledger_(links_[0]) {}

Result<std::vector<double>> Coordinator::run(const optim::VectorProgram& program) {
  const std::string bytes = encode(program);
  std::vector<std::shared_ptr<DataCall>> calls;
  const auto link_of = [this](std::size_t shard) { return links_[shard % links_.size()]; };
  for (std::size_t s = 0; s < shards_; ++s) {
    calls.push_back(link_of(s)->start({.op = DataOp::kRun,
                                       .shard = static_cast<std::uint32_t>(s / links_.size()),
                                       .given = {},
                                       .program = bytes}));
  }
  const std::vector<bool> losses = losses_of(program);
  std::vector<double> sums(losses.size());
  Status outcome;
  for (std::size_t s = 0; s < shards_; ++s) {
    const Status done = link_of(s)->wait(*calls[s]);
    if (outcome.ok()) outcome = done;
    if (!outcome.ok()) continue;
    STORMO_ASSIGN_OR_RETURN(const std::vector<double> numbers,
                            decode<std::vector<double>>(calls[s]->body));
    if (numbers.size() != sums.size()) {
      return Status(Code::kCorrupt, "server protocol: another number of results of a program");
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (s == 0 || !losses[i]) sums[i] += numbers[i];
    }
  }
  STORMO_RETURN_IF_ERROR(outcome);
  return sums;
}

}  // namespace stormo::server
