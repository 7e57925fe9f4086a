#include <stormo/train/server_store/served_parameters.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <stormo/server/shard/in_place_shard.h>
#include <stormo/tensor/dtype.h>

namespace stormo::train {
namespace {

using server::HostShard;
using server::InPlaceShard;
using server::ServedParameter;
using server::ShardPiece;
using server::ShardUpdates;
using server::SharedShard;

std::byte* bytes_of(const torch::Tensor& t) { return static_cast<std::byte*>(t.data_ptr()); }

std::size_t offset_of(const ShardPiece& piece) {
  return static_cast<std::size_t>(piece.begin) * size_of(piece.dtype);
}

Result<std::vector<ServedParameter>> served(const std::vector<NamedParameter>& parameters) {
  std::vector<ServedParameter> out;
  for (const NamedParameter& p : parameters) {
    const torch::Tensor& t = p.tensor;
    const bool fits = t.is_cpu() && t.layout() == torch::kStrided && t.is_contiguous() &&
                      (t.scalar_type() == torch::kFloat32 || t.scalar_type() == torch::kFloat64);
    if (!fits) {
      return invalid_argument("parameter '" + p.name +
                              "' cannot lie on servers: these hold contiguous float32 and float64 "
                              "tensors in host memory");
    }
    STORMO_ASSIGN_OR_RETURN(const DType dtype, tensor::dtype_of(t.scalar_type()));
    out.push_back({.name = p.name, .elements = t.numel(), .dtype = dtype});
  }
  return out;
}

Status check_copies(const protocol::PolicyOptions& policy) {
  using Kind = protocol::PolicyOptions::Kind;
  const bool waits = policy.kind != Kind::kAsync && policy.kind != Kind::kNSoftsync;
  if (!waits && !protocol::compensates_delay(policy.compensation)) return {};
  return invalid_argument(
      "fetch_every and push_every above 1 go with policy async or n_softsync, and not with "
      "delay compensation: others need a read before each push");
}

/// Of a worker that pushes every `push_every` steps: pushes after which it has done `steps`.
int pushes_in(int steps, int push_every) {
  return steps <= 0 ? steps : 1 + (steps - 1) / std::max(1, push_every);
}

/// A push has the rows of a step, of tables whose rows each lie on one shard.
Status check_tables(const std::vector<NamedParameter>& parameters, const TrainerOptions& options) {
  const auto table = std::ranges::find_if(parameters, &NamedParameter::sparse);
  if (table == parameters.end()) return {};
  const std::string who = "parameter '" + table->name + "' has sparse gradients, and ";
  if (options.strategy.kind == Strategy::Kind::kElasticAveraging) {
    return invalid_argument(who +
                            "elastic averaging exchanges whole parameters; use dense gradients, or "
                            "strategy.kind=parameter_server");
  }
  if (protocol::averages_values(options.servers.policy.kind)) {
    return invalid_argument(who +
                            "policy average takes whole parameters; use dense gradients, or "
                            "another policy");
  }
  if (options.servers.placement == server::PlacementRule::kSliced) {
    return invalid_argument(who +
                            "strategy.placement=sliced cuts through rows; use greedy or "
                            "round_robin");
  }
  if (options.strategy.exchange_periods.every_step()) return {};
  return invalid_argument(who +
                          "a worker that adds up several steps pushes whole parameters; leave out "
                          "fetch_every and push_every, or use dense gradients");
}

Status check_in_place(const TrainerOptions& options, const server::ShardOptions& shard) {
  STORMO_RETURN_IF_ERROR(InPlaceShard::check(shard));
  if (!options.strategy.exchange_periods.every_step()) {
    return invalid_argument(
        "updates in place take the gradient of every step; leave out fetch_every and push_every, "
        "or use strategy.updates=versions");
  }
  if (options.servers.policy.warm_start > 0) {
    return invalid_argument(
        "with updates in place nobody waits; leave out strategy.warm_start, or use "
        "strategy.updates=versions");
  }
  if (!options.record.empty()) {
    return invalid_argument(
        "updates in place have no order that could be recorded; use strategy.updates=versions");
  }
  if (options.servers.processes > 0 || options.session) {
    return invalid_argument(
        "server processes write versions: updates in place are for workers that share memory; "
        "leave out strategy.server_processes, or use strategy.updates=versions");
  }
  return {};
}

/// With memory in the order of the elements.
torch::Tensor coalesced_rows(const torch::Tensor& gradient) {
  const torch::Tensor rows = gradient.coalesce();
  return torch::sparse_coo_tensor(rows.indices().contiguous(), rows.values().contiguous(),
                                  rows.sizes())
      ._coalesced_(true);
}

server::GradientRows rows_of(const torch::Tensor& gradient) {
  const torch::Tensor indices = gradient.indices().select(0, 0);
  return {.indices = {indices.const_data_ptr<std::int64_t>(),
                      static_cast<std::size_t>(indices.numel())},
          .row_length = gradient.numel() / gradient.size(0),
          .values = gradient.values().const_data_ptr()};
}

}  // namespace

Result<ServedParameters> ServedParameters::create(std::vector<NamedParameter> parameters,
                                                  const TrainerOptions& options, int workers) {
  if (workers > server::ShardMemory::kMaxWorkers) {
    return invalid_argument("servers have at most " +
                            std::to_string(server::ShardMemory::kMaxWorkers) + " workers");
  }
  ServedParameters out;
  out.has_copies_ = !options.strategy.exchange_periods.every_step();
  if (out.has_copies_) STORMO_RETURN_IF_ERROR(check_copies(options.servers.policy));
  STORMO_ASSIGN_OR_RETURN(const std::vector<ServedParameter> sizes, served(parameters));
  STORMO_RETURN_IF_ERROR(check_tables(parameters, options));
  const ServerOptions& servers = options.servers;
  const int most = std::max(1, static_cast<int>(parameters.size()));
  const int count = servers.count > 0 ? servers.count : std::min(most, workers);
  STORMO_ASSIGN_OR_RETURN(out.placed_, place(sizes, count, servers.placement));
  out.policy_ = servers.policy;
  out.policy_.warm_start =
      pushes_in(servers.policy.warm_start, options.strategy.exchange_periods.push);
  out.shard_options_ = {.workers = workers, .optimizer = options.optimizer, .policy = {}};
  STORMO_ASSIGN_OR_RETURN(out.shard_options_.policy, make_policy(out.policy_, workers));
  STORMO_RETURN_IF_ERROR(server::check_norms(out.terms()));
  out.updates_ = servers.updates;
  if (out.in_place()) {
    STORMO_RETURN_IF_ERROR(check_in_place(options, out.shard_options_));
  }
  out.slices_.resize(parameters.size());
  out.copies_.resize(parameters.size());
  for (std::size_t s = 0; s < out.placed_.size(); ++s) {
    for (std::size_t i = 0; i < out.placed_[s].size(); ++i) {
      out.slices_[out.placed_[s][i].parameter].push_back({.shard = s, .piece = i});
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (out.has_copies_ || out.slices_[i].size() > 1)
      out.copies_[i] = torch::empty_like(parameters[i].tensor.detach());
  }
  out.parameters_ = std::move(parameters);
  return out;
}

server::RunTerms ServedParameters::terms() const {
  return {.facts = {},
          .pieces = placed_,
          .workers = shard_options_.workers,
          .optimizer = shard_options_.optimizer,
          .policy = policy_};
}

std::unique_ptr<HostShard> ServedParameters::make_shard(std::size_t shard, int worker,
                                                        server::ShardWait wait) const {
  if (in_place()) return std::make_unique<InPlaceShard>(placed_[shard], shard_options_, worker);
  return std::make_unique<SharedShard>(placed_[shard], shard_options_, worker, std::move(wait));
}

Status ServedParameters::copy_values_to(server::Shard& shard, std::size_t number) const {
  for (std::size_t i = 0; i < placed_[number].size(); ++i) {
    const ShardPiece& at = placed_[number][i];
    server::PieceArrays values;
    values.weights = bytes_of(parameters_[at.parameter].tensor) + offset_of(at);
    STORMO_RETURN_IF_ERROR(shard.set(i, values));
  }
  return {};
}

void ServedParameters::show(std::span<const server::Shard::View> views) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) show(i, values_of(i, views));
}

void ServedParameters::copy(std::span<const server::Shard::View> views,
                            const std::vector<torch::Tensor>& values) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (values[i].defined()) copy(i, values_of(i, views), values[i]);
  }
}

void ServedParameters::show(std::size_t number, std::span<const std::byte* const> values) {
  torch::Tensor parameter = parameters_[number].tensor;
  const torch::Tensor& own = copies_[number];
  if (!own.defined()) {
    // nobody writes a version that is in use, nor does the module
    parameter.set_data(torch::from_blob(const_cast<std::byte*>(values[0]), parameter.sizes(),
                                        parameter.options().requires_grad(false)));
    return;
  }
  copy(number, values, own);
  parameter.set_data(own);
}

std::vector<const std::byte*> ServedParameters::values_of(
    std::size_t number, std::span<const server::Shard::View> views) const {
  std::vector<const std::byte*> out;
  for (const Slice& s : slices_[number]) out.push_back(views[s.shard].pieces[s.piece]);
  return out;
}

void ServedParameters::copy(std::size_t number, std::span<const std::byte* const> values,
                            const torch::Tensor& to) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ShardPiece& at = piece(slices_[number][i]);
    std::memcpy(bytes_of(to) + offset_of(at), values[i], at.bytes());
  }
}

const void* ServedParameters::gradient_of(const Slice& slice, const torch::Tensor& gradient) const {
  return bytes_of(gradient) + offset_of(piece(slice));
}

void ServedParameters::copy_all() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor parameter = parameters_[i].tensor;
    copies_[i] = parameter.detach().clone();
    parameter.set_data(copies_[i]);
  }
}

void ServedParameters::keep_values() {
  for (const NamedParameter& p : parameters_) {
    torch::Tensor parameter = p.tensor;
    parameter.set_data(parameter.detach().clone());
  }
}

std::vector<torch::Tensor> ServedParameters::gradients() const {
  std::vector<torch::Tensor> out;
  for (const NamedParameter& p : parameters_) {
    const torch::Tensor& g = p.tensor.grad();
    if (g.defined() && g.is_sparse()) {
      const bool rows = p.sparse && g.sparse_dim() == 1 && g.numel() > 0;
      out.push_back(rows ? coalesced_rows(g.detach()) : g.detach().to_dense());
    } else {
      out.push_back(g.defined() ? g.detach().contiguous() : g);
    }
  }
  return out;
}

std::vector<void*> ServedParameters::pieces_of(std::size_t shard,
                                               const std::vector<torch::Tensor>& values) const {
  std::vector<void*> out;
  for (const ShardPiece& at : placed_[shard]) {
    out.push_back(bytes_of(values[at.parameter]) + offset_of(at));
  }
  return out;
}

std::vector<server::PushedPiece> ServedParameters::gradient_pieces(
    std::size_t shard, const std::vector<torch::Tensor>& gradients) const {
  std::vector<server::PushedPiece> out;
  for (const ShardPiece& at : placed_[shard]) {
    const torch::Tensor& g = gradients[at.parameter];
    server::PushedPiece& piece = out.emplace_back();
    if (!g.defined()) continue;
    if (g.is_sparse()) {
      piece.rows = rows_of(g);
    } else {
      piece.array = bytes_of(g) + offset_of(at);
    }
  }
  return out;
}

}  // namespace stormo::train
